from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a cache of its own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(folder))
    return folder
