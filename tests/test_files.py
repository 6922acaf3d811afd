import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright.files import (
    atomic_write,
    machine_file,
    open_to_append,
    remove_folder,
    state_of,
    write_machine_file,
)
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec


def test_atomic_write(tmp_path: Path) -> None:
    path = tmp_path / "made" / "on the way" / "file"
    atomic_write(path, "é\n")
    assert path.read_bytes() == b"\xc3\xa9\n"
    atomic_write(path, b"\0\r\n")
    assert path.read_bytes() == b"\0\r\n"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("call", ["os.fsync", "pathlib.Path.replace"])
def test_an_interrupted_write_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "file"
    atomic_write(path, "old")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(call, interrupt)
    with pytest.raises(KeyboardInterrupt):
        atomic_write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_flushed_before_it_takes_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "file", []
    monkeypatch.setattr("os.fsync", lambda _: seen.append(path.exists()))
    atomic_write(path, "x")
    assert seen == [False, True]  # the file, then its folder


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: (path.mkdir(), (path / "x").touch())])
def test_a_folder_in_the_way(tmp_path: Path, make: object) -> None:
    make(tmp_path / "file")
    with pytest.raises(UserError, match=r"^\S*file cannot be written: found a folder; expected"):
        atomic_write(tmp_path / "file", "x")


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(UserError, match="cannot be written"):
        atomic_write(tmp_path / "a" / "b", "x")


def test_remove_folder(tmp_path: Path) -> None:
    for _ in range(2):
        (tmp_path / "step-1" / "deep").mkdir(parents=True)
        remove_folder(tmp_path / "step-1")
        assert list(tmp_path.iterdir()) == []
    remove_folder(tmp_path / "none")


def test_each_machine_has_a_file_until_it_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    for host, boot in (("a", "boot-1"), ("b", "boot-2"), ("a", "boot-3")):
        monkeypatch.setattr("archwright.files._boot", lambda boot=boot: boot)
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        place = machine_file(tmp_path, "kept", state_of({}))
        write_machine_file(place, {"boot": boot}, "kept")
        assert json.loads(place.read_text()) == {"host": host, "boot": boot}
        written.append(place)
    assert len(set(written)) == 3
    assert set(tmp_path.iterdir()) == {*written[1:]}


@pytest.mark.skipif(os.name == "nt", reason="needs links and pipes")
@pytest.mark.parametrize("write", [lambda path: atomic_write(path, "x"), open_to_append])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_nothing_but_a_file_is_written_over(
    kind: str, write: Callable[[Path], object], tmp_path: Path
) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    other.write_text("mine")
    {"link": lambda: path.symlink_to(other), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[
        kind
    ]()
    with pytest.raises(UserError, match=f"file cannot be written: found a {kind}; expected a file"):
        write(path)
    assert other.read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == [path, other]


def test_a_temporary_file_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can guess its name; who does all the same has nothing written through a link."""
    monkeypatch.setattr("secrets.token_hex", lambda _: "01234567")
    (tmp_path / "other").write_text("mine")
    planted = tmp_path / f".file.{os.getpid()}.01234567.tmp"
    planted.symlink_to("other")
    with pytest.raises(UserError, match="file cannot be written: File exists"):
        atomic_write(tmp_path / "file", "x")
    assert (tmp_path / "other").read_text() == "mine"


@pytest.mark.skipif(os.name == "nt", reason="names are UTF-16 there")
def test_a_name_that_is_not_utf_8_is_refused_first(tmp_path: Path) -> None:
    made = tmp_path / os.fsdecode(b"\xff")
    for write in (
        lambda: atomic_write(made / "file", "x"),
        lambda: RunFolder.create(made, RunSpec()),
    ):
        with pytest.raises(UserError, match=r"found a name that is not UTF-8\. Rename it\."):
            write()
    assert not made.exists()
