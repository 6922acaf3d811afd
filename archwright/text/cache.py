"""The cache folder, for files that can be recreated."""

import contextlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from archwright import files
from archwright.files import clear_errors, remove
from archwright.spec.errors import UserError
from archwright.spec.files import expanded

SETTING = "ARCHWRIGHT_CACHE"
"""Environment variable for the cache folder."""

UNFINISHED = re.compile(r"\.tmp-(?P<name>[0-9a-f]{32})-\w+")
"""Names of temporary files. A process that writes a file holds the lock of the file's final name."""
NAME = "[0-9a-f]{32}(?:-[0-9a-f]{16})?"
"""Names of entries: a hash. A hash of the boot ID follows if an entry is valid for one boot only."""
LOCK = re.compile(rf"\.(?P<name>{NAME}(?:\.json)?)\.lock")


def cache_folder(*parts: str) -> Path:
    """Return a folder below $ARCHWRIGHT_CACHE or the platform's user cache.

    Raises:
        UserError: The variable starts with the home folder of an unknown user.
    """
    chosen = os.environ.get(SETTING)
    try:
        root = expanded(chosen) if chosen else platformdirs.user_cache_path("archwright")
    except UserError as error:
        raise UserError(f"{SETTING}: {error}") from None
    return root.joinpath(*parts)


@contextmanager
def only_one(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Lock `path`, so that one process at a time creates it.

    Yields True when locked, or False if `wait` is false and another process holds the lock.
    """
    place = path.parent / f".{path.name}.lock"
    lock = FileLock(place)
    with clear_errors(path.parent, SETTING):
        path.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir() or place.is_symlink():
            remove(place)
        with contextlib.suppress(Timeout):
            lock.acquire(blocking=wait)
    if not lock.is_locked:
        yield False
        return
    try:
        yield True
    finally:
        # Processes waiting for a removed lock file open a new one: see UnixFileLock.
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)
        lock.release()


def sweep() -> None:
    """Remove leftovers of dead processes from the cache."""
    for kind in ("tokens", "tokenizers", "measured", "surveys"):
        folder = cache_folder(kind)
        for path in listed(folder):
            if match := UNFINISHED.fullmatch(path.name) or LOCK.fullmatch(path.name):
                _remove_unless_busy(path, folder / match["name"])
        if not folder.is_symlink():
            # The process may be alive on another machine, but then it holds a lock.
            for path in files.abandoned(folder, rf"{NAME}\.json"):
                _remove_unless_busy(path, folder / f"{path.name.split('.')[1]}.json")


def listed(folder: Path) -> list[Path]:
    """Return the sorted paths in a folder. Empty if it is missing or a link."""
    try:
        return [] if folder.is_symlink() else sorted(folder.iterdir())
    except OSError:
        return []


def mark_used(path: Path) -> None:
    """Set the modification time, which records the last use, to now."""
    with contextlib.suppress(OSError):
        os.utime(path)


def _remove_unless_busy(left: Path, path: Path) -> None:
    """Remove the leftover `left` unless a process is creating `path`."""
    with contextlib.suppress(UserError), only_one(path, wait=False) as ours:
        if ours:
            remove(left)
