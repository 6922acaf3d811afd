"""What verbs print from generated files is what the specs resolve to."""

from pathlib import Path

import pytest

from docs._make import listings


@pytest.mark.slow
def test_the_files_are_what_the_specs_resolve_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = listings.FOLDER
    monkeypatch.setattr(listings, "FOLDER", tmp_path)
    listings.write()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(path.name for path in before.iterdir())
    for name in names:
        assert (before / name).read_bytes() == (tmp_path / name).read_bytes(), "run `make docs`"
