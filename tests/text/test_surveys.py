"""A large file is read once, until it is touched; what is kept of it is never taken for another file's."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright.spec.data import DataSpec
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
        lambda kept: kept | {"found": kept["found"] | {"digest": "0"}},
        lambda kept: kept | {"found": kept["found"] | {"kept_bytes": -1}},
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
    found = surveys.Survey(size=1, digest="0" * 32, kept_bytes=1, held_out_bytes=0, contents="")

    def survey() -> surveys.Survey:
        path.write_text(CONTENT + CONTENT)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(surveys, "LARGE", 100)
        assert surveys.cached_survey(path, {}, survey) == found
    assert list((cache / "surveys").iterdir()) == []


def test_each_machine_keeps_its_own_until_it_is_started_again(
    path: Path, cache: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_all = cache / "surveys" / f"{'0' * 32}.json"

    def become(host: str, boot: str) -> None:
        monkeypatch.setattr("archwright.files._boot", lambda: boot)
        monkeypatch.setattr("socket.gethostname", lambda: host)

    before = fingerprint(path)
    of_all.write_text("{}")  # of another file
    for host, boot in (("a", "boot-1"), ("b", "boot-2")):
        become(host, boot)
        assert fingerprint(path) == before
    assert len(reads) == 3
    for host, boot in (("a", "boot-1"), ("b", "boot-2")):
        become(host, boot)
        assert fingerprint(path) == before
    assert len(reads) == 3
    become("a", "boot-3")
    assert fingerprint(path) == before
    assert len(reads) == 4
    kept = [json.loads(p.read_text()) for p in (cache / "surveys").iterdir() if p != of_all]
    found = {(entry["host"], entry["state"]["boot"]) for entry in kept}
    assert {("a", "boot-3"), ("b", "boot-2")} <= found
    assert ("a", "boot-1") not in found
    assert of_all.exists()


def test_of_processes_that_start_at_once_one_reads(
    path: Path, reads: list[Path], cache: Path
) -> None:
    found = list[str]()
    threads = [threading.Thread(target=lambda: found.append(fingerprint(path))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert reads == [path]
    assert len(found) == 3
    assert len({*found}) == 1
    assert len(list((cache / "surveys").iterdir())) == 1  # and no lock


def test_where_no_lock_can_be_made_a_file_is_read(
    path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(tmp_path / "file"))
    assert fingerprint(path)
    assert reads == [path]
