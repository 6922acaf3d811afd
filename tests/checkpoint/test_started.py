"""What a start wrote down may be removed, and nothing else."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from archwright.checkpoint.started import FILE, StartRecord, drafted, folders_made
from archwright.files import sweep
from archwright.spec.errors import UserError


def dead_pid() -> int:
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    return int(done.stdout)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def record(tmp_path: Path) -> StartRecord:
    (tmp_path / "run").mkdir()
    record = StartRecord(tmp_path / "run")
    record.begin("train")
    return record


def test_what_was_written_down_goes_and_all_else_stays(record: StartRecord) -> None:
    folder = record.folder
    (folder / "mine").write_text("x")
    record.add("mine", "ours", "folder", "later")
    assert record.names == {"ours", "folder", "later"}
    (folder / "ours").write_text("x")
    (folder / ".ours.12.0123abcd.tmp").write_text("x")
    (folder / ".mine.12.0123abcd.tmp").write_text("x")
    (folder / "folder").mkdir()
    (folder / "folder" / "inner").write_text("x")
    (folder / "later").symlink_to("mine")
    assert record.others() == [".mine.12.0123abcd.tmp", "mine"]
    record.undo(keep=["ours"])
    assert names(folder) == sorted(
        [FILE, ".mine.12.0123abcd.tmp", "mine", "later", "ours", ".ours.12.0123abcd.tmp"]
    )
    record.undo()
    assert names(folder) == [".mine.12.0123abcd.tmp", "later", "mine"]
    assert record.names is None


def test_a_copied_folder_has_no_record(record: StartRecord, tmp_path: Path) -> None:
    record.add("ours")
    (record.folder / "ours").write_text("x")
    copy = StartRecord(Path(shutil.copytree(record.folder, tmp_path / "copy")))
    assert copy.names is None
    assert copy.others() == [FILE, "ours"]
    copy.undo()
    copy.finish()
    assert names(copy.folder) == [FILE, "ours"]
    moved = StartRecord(record.folder.rename(tmp_path / "moved"))
    assert moved.names == {"ours"}


@pytest.mark.parametrize(
    "content",
    ["[", "{}\n", "[1]\n", '{"verb": "train"}\n', '{"pid": "1", "folder": 2}\n', "[" * 9999 + "\n"],
)
def test_a_file_of_that_name_that_says_something_else_is_foreign(
    content: str, tmp_path: Path
) -> None:
    (tmp_path / FILE).write_text(content)
    record = StartRecord(tmp_path)
    assert record.names is None
    assert record.others() == [FILE]
    record.undo()
    assert (tmp_path / FILE).read_text() == content


@pytest.mark.parametrize("name", ["../run2", "/etc", "a/b", "..", "", FILE])
def test_no_name_leads_out_of_the_folder(name: str, record: StartRecord) -> None:
    with record.file.open("a") as file:
        file.write(f'{{"name": "{name}"}}\n')
    assert record.names is None


def test_a_record_that_was_killed_while_it_was_written_counts(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    record = StartRecord(tmp_path)
    assert record.others() == []
    record.begin("train")
    record.add("ours")
    with record.file.open("ab") as file:
        file.write(b'{"name": "ne')
    assert record.names == {"ours"}


def test_a_link_is_no_record(tmp_path: Path, record: StartRecord) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / FILE).symlink_to(record.file)
    assert StartRecord(other).names is None
    StartRecord(other).finish()
    assert record.names == set()


def test_folders_that_were_made_go_again(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()

    def fails() -> None:
        with folders_made(tmp_path / "a" / "b" / "c"):
            (tmp_path / "a" / "mine").touch()
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert names(tmp_path / "a") == ["mine"]


def test_a_draft_takes_its_place_or_goes(tmp_path: Path) -> None:
    with drafted(tmp_path / "new" / "out") as draft:
        (draft / "file").write_text("x")
    assert names(tmp_path / "new" / "out") == ["file"]

    def fails() -> None:
        with drafted(tmp_path / "other" / "out") as draft:
            (draft / "file").write_text("x")
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert names(tmp_path) == ["new"]
    with pytest.raises(UserError, match="not empty"), drafted(tmp_path / "new") as draft:
        pass
    assert names(tmp_path) == ["new"]


def test_drafts_of_the_dead_are_swept_and_nothing_like_them(tmp_path: Path) -> None:
    dead = dead_pid()
    left = tmp_path / f".out.{dead}.0123abcd.tmp"
    foreign = [".out.tmp", f".out.{dead}.tmp", ".out.x.0123abcd.tmp"]
    alive = tmp_path / f".out.{os.getpid()}.0123abcd.tmp"
    for path in (left, alive, *(tmp_path / name for name in foreign)):
        path.mkdir()
        (path / "file").touch()
    with drafted(tmp_path / "out"):
        pass
    assert names(tmp_path) == sorted([*foreign, alive.name, "out"])


def test_only_files_that_nobody_writes_any_more_are_swept(tmp_path: Path) -> None:
    dead, ours = dead_pid(), os.getpid()
    for name in (
        f".a.json.{dead}.0123abcd.tmp",
        f".b.json.{dead}.0123abcd.tmp",
        f".a.json.{ours}.0123abcd.tmp",
        ".a.json.tmp",
    ):
        (tmp_path / name).touch()
    (tmp_path / f".c.json.{dead}.0123abcd.tmp").symlink_to("x")
    (tmp_path / ".a.json.9999999999.0123abcd.tmp").touch()
    old = tmp_path / f".d.json.{ours}.0123abcd.tmp"
    old.touch()
    os.utime(old, (time.time() - 90_000,) * 2)
    sweep(tmp_path, r"[acd]\.json")
    kept = [
        f".b.json.{dead}.0123abcd.tmp",
        f".a.json.{ours}.0123abcd.tmp",
        ".a.json.tmp",
        f".c.json.{dead}.0123abcd.tmp",
    ]
    assert names(tmp_path) == sorted(kept)
