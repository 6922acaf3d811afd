"""The cache stands where the user wants it, and what the disk refuses is told in one line."""

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from archwright.files import clear_errors
from archwright.spec.errors import UserError
from archwright.text.cache import cache_folder, only_one, sweep
from archwright.text.cache_contents import clean, entries


def test_the_folder_follows_the_environment(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder("tokens") == cache / "tokens"
    monkeypatch.delenv("ARCHWRIGHT_CACHE")
    assert "archwright" in str(cache_folder())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOTDIR])
def test_what_the_disk_refuses_is_one_line_with_advice(tmp_path: Path, code: int) -> None:
    with pytest.raises(UserError) as caught, clear_errors(tmp_path, "ARCHWRIGHT_CACHE"):
        raise OSError(code, os.strerror(code))
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{tmp_path} cannot be written: ")
    assert "ARCHWRIGHT_CACHE" in line


def test_other_mistakes_pass(tmp_path: Path) -> None:
    with pytest.raises(KeyError), clear_errors(tmp_path, "ARCHWRIGHT_CACHE"):
        raise KeyError("x")


def test_one_at_a_time(tmp_path: Path) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        with only_one(tmp_path / "new" / "thing"):
            inside += 1
            most = max(most, inside)
            time.sleep(0.02)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"), only_one(tmp_path / "file" / "thing"):
        pass


def test_the_home_of_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHWRIGHT_CACHE", "~nobody-here/x")
    with pytest.raises(UserError, match=r"ARCHWRIGHT_CACHE: .*no home folder is known"):
        cache_folder()


@pytest.mark.skipif(os.name == "nt", reason="needs links")
def test_a_link_in_place_of_a_lock_goes_and_leads_nowhere(tmp_path: Path) -> None:
    """Somebody else who writes to a shared cache has put it there."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".thing.lock").symlink_to("mine")
    with only_one(tmp_path / "thing") as ours:
        assert ours
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("mine", "mine")]


def test_no_lock_is_left(tmp_path: Path) -> None:
    with only_one(tmp_path / "thing") as ours:
        assert ours
        with only_one(tmp_path / "thing", wait=False) as other:
            assert not other
    assert list(tmp_path.iterdir()) == []


HASHES = [f"{i:032x}" for i in range(4)]


def made(cache: Path, *names: str) -> list[Path]:
    paths = [cache / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 100)
    return paths


def test_what_dead_processes_left_is_swept(cache: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = [
        f"tokens/.{HASHES[0]}.lock",
        f"tokens/.tmp-{HASHES[1]}-a_b1/shard-00000.bin",
        f"tokenizers/.{HASHES[2]}.json.lock",
        f"tokenizers/.{HASHES[2]}.json.{dead.pid}.0123abcd.tmp",
        f"measured/.{HASHES[3]}.json.{dead.pid}.0123abcd.tmp",
        f"surveys/.{HASHES[3]}-{'0' * 16}.json.{dead.pid}.0123abcd.tmp",
        f"surveys/.{HASHES[3]}-{'0' * 16}.json.lock",
    ]
    kept = [
        f"tokens/{HASHES[0]}/index.json",
        "tokens/.tmp-mine",
        "tokens/notes.lock",
        f"tokenizers/{HASHES[2]}.json",
        f"measured/.{HASHES[3]}.json.{os.getpid()}.0123abcd.tmp",
        f"other/.{HASHES[0]}.lock",
    ]
    made(cache, *left, *kept)
    with only_one(cache / "tokens" / HASHES[1]):  # somebody is making that one
        sweep()
        found = {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()}
        assert found == {left[1], f"tokens/.{HASHES[1]}.lock", *kept}
    sweep()
    assert {str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file()} == set(kept)


def test_what_another_machine_writes_is_not_swept(cache: Path) -> None:
    """No process of this machine has its number; who writes it holds a lock."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (written,) = made(cache, f"tokenizers/.{HASHES[0]}.json.{dead.pid}.0123abcd.tmp")
    with only_one(cache / "tokenizers" / f"{HASHES[0]}.json"):
        sweep()
        assert written.exists()
    sweep()
    assert not written.exists()


def test_contents_and_cleaning(cache: Path, tmp_path: Path) -> None:
    ours = made(
        cache,
        f"tokens/{HASHES[0]}/index.json",
        f"tokens/{HASHES[0]}/shard-00000.bin",
        f"tokens/{HASHES[1]}/index.json",
        f"tokenizers/{HASHES[2]}.json",
        f"tokenizers/{HASHES[2]}.blake2",
        f"measured/{HASHES[3]}.json",
        f"surveys/{HASHES[3]}-{'0' * 16}.json",
    )
    mine = made(cache, "notes.txt", "tokens/notes.txt", f"tokens/{HASHES[2][1:]}/index.json")
    outside = made(tmp_path / "outside", "index.json")
    (cache / "tokens" / HASHES[3]).symlink_to(tmp_path / "outside")
    (cache / "measured" / f"{HASHES[0]}.json").symlink_to(outside[0])
    (cache / "tokens" / HASHES[1] / "link").symlink_to(tmp_path / "outside")
    month_ago = time.time() - 30 * 86400
    os.utime(cache / "tokens" / HASHES[0], (month_ago, month_ago))
    found = [(entry.kind, entry.name, entry.size) for entry in entries()]
    assert found == [
        ("tokens", HASHES[1], 100),
        ("tokens", HASHES[0], 200),
        ("tokenizers", HASHES[2], 100),
        ("tokenizers", HASHES[2], 100),
        ("measured", HASHES[3], 100),
        ("surveys", f"{HASHES[3]}-{'0' * 16}", 100),
    ]
    assert [entry.name for entry in clean(older_than=86400).removed] == [HASHES[0]]
    with only_one(cache / "tokens" / HASHES[1]):
        done = clean()
    assert [entry.name for entry in done.busy] == [HASHES[1]]
    assert [entry.kind for entry in clean().removed] == ["tokens"]
    assert entries() == []
    assert not any(path.exists() for path in ours)
    assert all(path.exists() for path in (*mine, *outside))
    assert not (cache / "tokenizers").exists()


def test_a_folder_of_the_cache_that_is_a_link_is_left_alone(cache: Path, tmp_path: Path) -> None:
    (path,) = made(tmp_path / "outside", f"{HASHES[0]}.json")
    cache.mkdir()
    (cache / "measured").symlink_to(tmp_path / "outside")
    assert clean().removed == []
    assert path.exists()
