"""Listing and removing entries of the cache."""

import os
import re
import time
from pathlib import Path
from typing import NamedTuple

from archwright.files import remove
from archwright.spec.errors import UserError
from archwright.text.cache import NAME, cache_folder, listed, only_one, sweep

HASH = r"[0-9a-f]{32}"
KINDS = {
    "tokens": re.compile(HASH),
    "tokenizers": re.compile(rf"{HASH}\.(json|blake2)"),  # .blake2: from version 0.1.0
    "measured": re.compile(rf"{HASH}\.json"),
    "surveys": re.compile(rf"{NAME}\.json"),
}
"""Cache folders and the names of their entries. Other files are neither listed nor removed."""


class Entry(NamedTuple):
    """A cache entry. `size` is in bytes, `used` the time of last use in seconds since 1970."""

    kind: str
    path: Path
    size: int
    used: float

    @property
    def name(self) -> str:
        """Hash of the entry's inputs."""
        return self.path.name.split(".")[0]


class Cleaned(NamedTuple):
    """Entries by result: removed, in use, or not removable."""

    removed: list[Entry]
    busy: list[Entry]
    refused: list[Entry]


def entries() -> list[Entry]:
    """Return cache entries by kind, most recently used first, ignoring links."""
    made = [
        Entry(kind, path, _size(path), path.lstat().st_mtime)
        for kind, pattern in KINDS.items()
        for path in listed(cache_folder(kind))
        if pattern.fullmatch(path.name) and not path.is_symlink()
    ]
    return sorted(made, key=lambda entry: (list(KINDS).index(entry.kind), -entry.used))


def clean(older_than: float = 0) -> Cleaned:
    """Remove entries last used at least `older_than` seconds ago (default: all).

    Entries that a process is writing stay, as do files that are not cache entries.
    """
    done = Cleaned([], [], [])
    before = time.time() - older_than
    for entry in entries():
        if not older_than or entry.used <= before:
            try:
                with only_one(entry.path, wait=False) as ours:
                    if ours:
                        remove(entry.path)
            except UserError:  # a folder that cannot be written
                ours = True
            if not ours:
                done.busy.append(entry)
            elif os.path.lexists(entry.path):
                done.refused.append(entry)
            else:
                done.removed.append(entry)
    sweep()
    for kind in KINDS:
        folder = cache_folder(kind)
        if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
            remove(folder)
    return done


def _size(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(
        Path(parent, name).lstat().st_size for parent, _, names in os.walk(path) for name in names
    )
