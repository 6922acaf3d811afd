"""The cache stands where the user wants it, and what the disk refuses is told in one line."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from archwright.spec.errors import UserError
from archwright.text.cache import cache_folder, only_one, writing


def test_the_folder_follows_the_environment(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder("tokens") == cache / "tokens"
    monkeypatch.delenv("ARCHWRIGHT_CACHE")
    assert "archwright" in str(cache_folder())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOTDIR])
def test_what_the_disk_refuses_is_one_line_with_advice(tmp_path: Path, code: int) -> None:
    with pytest.raises(UserError) as caught, writing(tmp_path):
        raise OSError(code, os.strerror(code))
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"cannot write to {tmp_path}: ")
    assert "ARCHWRIGHT_CACHE" in line


def test_other_mistakes_pass(tmp_path: Path) -> None:
    with pytest.raises(KeyError), writing(tmp_path):
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
    with pytest.raises(UserError, match="cannot write"), only_one(tmp_path / "file" / "thing"):
        pass
