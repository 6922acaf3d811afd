"""The cache's entries, and removing those that are ours."""

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
    "tokenizers": re.compile(rf"{HASH}\.(json|blake2)"),  # the latter of 0.1.0
    "measured": re.compile(rf"{HASH}\.json"),
    "surveys": re.compile(rf"{NAME}\.json"),
}
"""Folders of the cache, and the names in them that are its own; nothing else is counted or removed."""


class Entry(NamedTuple):
    """Something that the cache keeps: its kind, its file or folder, the bytes, and when it was last used."""

    kind: str
    path: Path
    size: int
    used: float

    @property
    def name(self) -> str:
        """The hash of what it was made of."""
        return self.path.name.split(".")[0]


class Cleaned(NamedTuple):
    """Entries that were removed, those in use by a process, and those the system refused to remove."""

    removed: list[Entry]
    busy: list[Entry]
    refused: list[Entry]


def entries() -> list[Entry]:
    """Return all that the cache holds, by kind and by last use, without following any link."""
    made = [
        Entry(kind, path, _size(path), path.lstat().st_mtime)
        for kind, pattern in KINDS.items()
        for path in listed(cache_folder(kind))
        if pattern.fullmatch(path.name) and not path.is_symlink()
    ]
    return sorted(made, key=lambda entry: (list(KINDS).index(entry.kind), -entry.used))


def clean(older_than: float = 0) -> Cleaned:
    """Remove what was last used `older_than` seconds ago or earlier, by default everything.

    What another process makes at this moment stays, and so does whatever the cache did not make.
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
