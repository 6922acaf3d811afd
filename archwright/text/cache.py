"""The folder that keeps what can be made again, and how writing into it goes wrong."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
from filelock import FileLock

from archwright.spec.errors import UserError

HELP = "Set ARCHWRIGHT_CACHE to a folder that can be written."
SPACE = "Free some space, or set ARCHWRIGHT_CACHE to a folder on another disk."
REASONS = {
    errno.ENOSPC: f"the disk is full. {SPACE}",
    errno.EDQUOT: f"the disk quota is used up. {SPACE}",
    errno.EROFS: f"it is on a read-only file system. {HELP}",
    errno.EACCES: f"it may not be written. {HELP}",
    errno.EPERM: f"it may not be written. {HELP}",
}


def cache_folder(*parts: str) -> Path:
    """Return a folder below the cache: $ARCHWRIGHT_CACHE, or the platform's usual place."""
    chosen = os.environ.get("ARCHWRIGHT_CACHE")
    root = Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("archwright")
    return root.joinpath(*parts)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn what the file system refuses inside the block into one line that says what to do.

    Raises:
        UserError: full disk, read-only folder, a file where a folder should be.
    """
    try:
        yield
    except OSError as error:
        reason = REASONS.get(error.errno or 0, f"{error.strerror or error}. {HELP}")
        raise UserError(f"cannot write to {folder}: {reason}") from error


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Let one process at a time make `folder`; the others wait until it is done."""
    with writing(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / f".{folder.name}.lock")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def sync_folder(folder: Path) -> None:
    """Make sure that names created in `folder` survive a power cut, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
