"""A large file is read once, until it is touched; what is kept of it is never taken for another file's."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright.spec.run_spec import DataSpec
from archwright.text import reading, surveys
from archwright.text.corpus import open_corpus

CONTENT = "".join(f'{{"text": "line {i}", "other": "word {i}"}}\n' for i in range(100))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read whole; all are large enough."""
    monkeypatch.setattr(surveys, "LARGE", 100)
    plain, found = reading._checked, list[Path]()

    def checked(handle: object, file: reading.TextFile, errors: str) -> tuple[int, str]:
        found.append(file.path)
        return plain(handle, file, errors)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "_checked", checked)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "text.jsonl"
    found.write_text(CONTENT)
    return found


def fingerprint(path: Path, **more: str) -> str:
    return open_corpus(DataSpec.model_validate({"text": (str(path),), **more})).fingerprint


def test_a_file_that_was_not_touched_is_read_once(path: Path, reads: list[Path]) -> None:
    before = open_corpus(DataSpec(text=(str(path),)))
    assert open_corpus(DataSpec(text=(str(path),))) == before
    assert reads == [path]


def test_a_small_file_leaves_nothing(path: Path, cache: Path) -> None:
    fingerprint(path)
    assert not (cache / "surveys").exists()


@pytest.mark.parametrize("more", [{"field": "other"}, {"errors": "replace"}, {"separator": "line"}])
def test_what_is_asked_otherwise_is_found_otherwise(
    path: Path, reads: list[Path], more: dict[str, str]
) -> None:
    assert fingerprint(path) != fingerprint(path, **more)
    assert reads == [path, path]


def same_size_and_times(path: Path, cache: Path) -> None:
    before = path.stat()
    path.write_text(CONTENT.replace("line 7", "LINE 7"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def another_file(path: Path, cache: Path) -> None:
    new = path.with_name("new")
    new.write_text(CONTENT.replace("line 7", "LINE 7"))
    new.replace(path)


@pytest.mark.parametrize("change", [same_size_and_times, another_file])
def test_what_was_touched_is_read_again(
    path: Path, cache: Path, reads: list[Path], change: Callable[[Path, Path], None]
) -> None:
    before = fingerprint(path)
    change(path, cache)
    assert fingerprint(path) != before
    assert len(reads) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: kept | {"found": kept["found"] | {"digest": "0" * 32}},
        lambda kept: kept | {"found": kept["found"] | {"kept_bytes": 1}},
        lambda kept: {k: v for k, v in kept.items() if k != "state"},
        lambda kept: [kept],
    ],
)
def test_a_damaged_entry_is_made_again(
    path: Path, cache: Path, reads: list[Path], damage: Callable[[dict[str, object]], object]
) -> None:
    before = fingerprint(path)
    [entry] = (cache / "surveys").iterdir()
    entry.write_text(json.dumps(damage(json.loads(entry.read_text()))))
    assert fingerprint(path) == before
    assert fingerprint(path) == before
    assert reads == [path, path]


def test_a_file_that_changes_while_it_is_read_is_not_kept(path: Path, cache: Path) -> None:
    found = surveys.Found(size=1, digest="0" * 32, kept_bytes=1, held_out_bytes=0)

    def survey() -> surveys.Found:
        path.write_text(CONTENT + CONTENT)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(surveys, "LARGE", 100)
        assert surveys.kept_or_surveyed(path, {}, survey) == found
    assert list((cache / "surveys").iterdir()) == []
