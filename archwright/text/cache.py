"""The folder that keeps what can be made again, and how writing into it goes wrong."""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
import psutil
from filelock import FileLock, Timeout

from archwright.spec.errors import UserError
from archwright.spec.files import expanded

HELP = "Set ARCHWRIGHT_CACHE to a folder that can be written."
SPACE = "Free some space, or set ARCHWRIGHT_CACHE to a folder on another disk."
REASONS = {
    errno.ENOSPC: f"the disk is full. {SPACE}",
    errno.EDQUOT: f"the disk quota is used up. {SPACE}",
    errno.EROFS: f"it is on a read-only file system. {HELP}",
    errno.EACCES: f"it may not be written. {HELP}",
    errno.EPERM: f"it may not be written. {HELP}",
}

UNFINISHED = re.compile(r"\.tmp-(?P<name>[0-9a-f]{32})-\w+|(?P<json>[0-9a-f]{32})\.\d+\.tmp")
"""What a process writes before it gives it its name, while it holds the lock of that name."""
ATOMIC = re.compile(r"\.(?:[0-9a-f]{32}|verified)\.json\.(?P<pid>\d+)\.tmp")
"""What it writes without a lock."""
LOCK = re.compile(r"\.(?P<name>[0-9a-f]{32}(?:\.json)?)\.lock")


def cache_folder(*parts: str) -> Path:
    """Return a folder below the cache: $ARCHWRIGHT_CACHE, or the platform's usual place.

    Raises:
        UserError: the variable names the home folder of nobody.
    """
    chosen = os.environ.get("ARCHWRIGHT_CACHE")
    try:
        root = expanded(chosen) if chosen else platformdirs.user_cache_path("archwright")
    except UserError as error:
        raise UserError(f"ARCHWRIGHT_CACHE: {error}") from None
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
def only_one(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Let one process at a time make `path`; the others wait until it is done.

    Yields whether this process may: always, unless it does not want to wait for another one.
    """
    place = path.parent / f".{path.name}.lock"
    lock = FileLock(place)
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir():
            remove(place)
        with contextlib.suppress(Timeout):
            lock.acquire(blocking=wait)
    if not lock.is_locked:
        yield False
        return
    try:
        yield True
    finally:
        # Whoever waits for a file that is removed looks for a new one: see UnixFileLock.
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)
        lock.release()


def sweep() -> None:
    """Remove what processes that died have left in the cache."""
    for kind in ("tokens", "tokenizers", "measured"):
        places = listed(cache_folder(kind))
        inside = [path for place in places if not place.is_symlink() for path in listed(place)]
        for path in [*places, *inside]:
            if found := UNFINISHED.fullmatch(path.name):
                name = found["name"] or f"{found['json']}.json"
                _remove_unless_busy(path, path.parent / name)
            elif found := LOCK.fullmatch(path.name):
                _remove_unless_busy(path, path.parent / found["name"])
            elif (found := ATOMIC.fullmatch(path.name)) and not psutil.pid_exists(
                int(found["pid"])
            ):
                remove(path)


def listed(folder: Path) -> list[Path]:
    """Return what is in a folder, by name; nothing if it is none, or a link."""
    try:
        return [] if folder.is_symlink() else sorted(folder.iterdir())
    except OSError:
        return []


def remove(path: Path) -> None:
    """Remove a file, a link (not what it leads to) or a folder, as far as that is allowed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def mark_used(path: Path) -> None:
    """Let the time of a file or folder say when it was last used."""
    with contextlib.suppress(OSError):
        os.utime(path)


def sync_folder(folder: Path) -> None:
    """Make sure that names created in `folder` survive a power cut, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_unless_busy(left: Path, path: Path) -> None:
    """Remove what is left of making `path`, unless a process is making it."""
    with contextlib.suppress(UserError), only_one(path, wait=False) as ours:
        if ours:
            remove(left)
