"""The folder that keeps what can be made again."""

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
"""Variable of the environment that says where the cache is."""

UNFINISHED = re.compile(r"\.tmp-(?P<name>[0-9a-f]{32})-\w+")
"""Temporary names, which a process uses while it holds the lock of the final name."""
NAME = "[0-9a-f]{32}(?:-[0-9a-f]{16})?"
"""A hash, with that of the boot of the one machine that it holds for."""
LOCK = re.compile(rf"\.(?P<name>{NAME}(?:\.json)?)\.lock")


def cache_folder(*parts: str) -> Path:
    """Return a folder below the cache: $ARCHWRIGHT_CACHE, or the platform's usual place.

    Raises:
        UserError: the variable names the home folder of nobody.
    """
    chosen = os.environ.get(SETTING)
    try:
        root = expanded(chosen) if chosen else platformdirs.user_cache_path("archwright")
    except UserError as error:
        raise UserError(f"{SETTING}: {error}") from None
    return root.joinpath(*parts)


@contextmanager
def only_one(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Let one process at a time make `path`; the others wait until it is done.

    Yields whether this process may: always, unless it does not want to wait for another one.
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
        # Whoever waits for a file that is removed looks for a new one: see UnixFileLock.
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)
        lock.release()


def sweep() -> None:
    """Remove what processes that died have left in the cache."""
    for kind in ("tokens", "tokenizers", "measured", "surveys"):
        folder = cache_folder(kind)
        for path in listed(folder):
            if found := UNFINISHED.fullmatch(path.name) or LOCK.fullmatch(path.name):
                _remove_unless_busy(path, folder / found["name"])
        if not folder.is_symlink():
            # Whether its process is alive is not known of another machine; what is written under a lock is.
            for path in files.abandoned(folder, rf"{NAME}\.json"):
                _remove_unless_busy(path, folder / f"{path.name.split('.')[1]}.json")


def listed(folder: Path) -> list[Path]:
    """Return what is in a folder, by name; nothing if it is none, or a link."""
    try:
        return [] if folder.is_symlink() else sorted(folder.iterdir())
    except OSError:
        return []


def mark_used(path: Path) -> None:
    """Let the time of a file or folder say when it was last used."""
    with contextlib.suppress(OSError):
        os.utime(path)


def _remove_unless_busy(left: Path, path: Path) -> None:
    """Remove what is left of making `path`, unless a process is making it."""
    with contextlib.suppress(UserError), only_one(path, wait=False) as ours:
        if ours:
            remove(left)
