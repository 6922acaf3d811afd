"""The record of an unfinished start: the names of files that a verb makes in a folder, written before the first file,
so that nothing else is removed.

    {"verb": "train", "pid": 12, "folder": 3456}    who, and the folder's number in its file system
    {"name": "requested.toml"}                      a name that was free, before it is made

The record goes when the folder is what the verb wants it to be. Until then, whoever comes next may remove what
stands in it, and nothing else. A copy of a folder has another number: there, nothing counts as ours.
"""

import contextlib
import json
import os
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from archwright import files

FILE = ".archwright-started.jsonl"
_FIRST = b'{"verb": '
"""How a record begins."""


class StartRecord:
    """The names that a verb makes in a folder, until that is whole."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / FILE

    @property
    def names(self) -> frozenset[str] | None:
        """The names that were free when they were written down; None where no record holds for this folder."""
        lines = self._lines
        return None if lines is None else frozenset(line["name"] for line in lines[1:])

    @property
    def pid(self) -> int:
        """The process that began."""
        lines = self._lines
        return int(lines[0]["pid"]) if lines else 0

    def others(self) -> list[str]:
        """Return what is in the folder and was not begun by us, in order."""
        found = sorted(path.name for path in self.folder.glob("*"))
        names = self.names
        if names is None:
            return found
        return [name for name in found if name != FILE and _written_as(name) not in names]

    def begin(self, verb: str) -> None:
        """Write the first line, unless a record is there; nothing of others may be in the folder."""
        if not self._lines:
            number = self.folder.stat().st_ino
            self._append({"verb": verb, "pid": os.getpid(), "folder": number})

    def add(self, *names: str) -> None:
        """Write down those of the names that are free, if a start is recorded; what is there already is not ours."""
        known = self.names
        for name in names:
            if known is not None and name not in known and not os.path.lexists(self.folder / name):
                self._append({"name": name})

    def undo(self, *, keep: Collection[str] = ()) -> None:
        """Remove what was written down, but for `keep`; the record goes too where nothing is kept."""
        names = self.names
        if names is None:
            return
        for path in self.folder.glob("*"):
            if _written_as(path.name) in names - set(keep) and not path.is_symlink():
                files.remove(path)  # nothing that we make is a link
        if not keep:
            self.finish()

    def finish(self) -> None:
        """Remove the record: what the folder holds is to stay."""
        if self.names is not None:
            with contextlib.suppress(OSError):
                self.file.unlink()

    @property
    def _lines(self) -> list[dict[str, Any]] | None:
        """The whole lines; none of a file whose first was cut off, None where the file says nothing of this folder."""
        try:
            if not stat.S_ISREG(self.file.lstat().st_mode):
                return None
            content = self.file.read_bytes()
            lines = [json.loads(line) for line in content.split(b"\n")[:-1]]
            cut_off = not lines and (content.startswith(_FIRST) or _FIRST.startswith(content))
            whole = cut_off or (
                type(lines[0]["pid"]) is int
                and lines[0]["folder"] == self.folder.stat().st_ino
                and all(_is_plain(line["name"]) for line in lines[1:])
            )
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return None
        return lines if whole else None

    def _append(self, line: dict[str, Any]) -> None:
        """Add a line that survives a power cut; where the disk refuses, the file is as it was."""
        with (
            files.clear_errors(self.file),
            files.open_to_append(self.file, "ab", buffering=0) as file,
        ):
            content = self.file.read_bytes()
            size = content.rfind(b"\n") + 1
            try:
                file.truncate(size)  # a killed writer may have left half a line
                file.write(json.dumps(line).encode() + b"\n")
                files.sync(self.file)
                files.sync(self.folder)
            except OSError:
                file.truncate(size)
                if not size:
                    self.file.unlink()
                raise


@contextlib.contextmanager
def folders_made(path: Path) -> Iterator[None]:
    """Make a folder and those above it; those that were made go again if the block fails, as far as they are empty."""
    made = missing(path)
    try:
        with files.clear_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        remove_empty(made)
        raise


def missing(path: Path) -> list[Path]:
    """Return the folders that making `path` would make, itself first."""
    return [folder for folder in (path, *path.parents) if not folder.exists()]


def remove_empty(folders: list[Path]) -> None:
    """Remove folders, the first first, as far as nothing is in them."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def drafted(folder: Path, verb: str) -> Iterator[Path]:
    """Yield a new hidden folder beside `folder`, which must be new or empty; it takes that place, flushed, at the end.

    Nothing is left of it if the block fails. What a killed process left, the next one removes.
    """
    with files.clear_errors(folder), folders_made(folder.parent):
        _sweep_drafts(folder)
        draft = files.temporary_name(folder)
        with files.publishing(draft, folder):
            StartRecord(draft).begin(verb)
            yield draft
        # Last: until then it says whose the draft is.
        StartRecord(folder).finish()


def _sweep_drafts(folder: Path) -> None:
    """Remove drafts of `folder` whose process is dead."""
    for path in files.abandoned(folder.parent, re.escape(folder.name)):
        if path.is_dir():
            record, pid = StartRecord(path), int(path.name.split(".")[-3])
            # Killed before its record was whole, a draft holds nothing else.
            inside = {entry.name for entry in path.iterdir()}
            if record.pid == pid or (inside <= {FILE} and not record.names):
                files.remove(path)


def _written_as(name: str) -> str:
    """Return the name that a file gets which is being written."""
    match = files.TEMPORARY.fullmatch(name)
    return match["name"] if match else name


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name and name not in ("", "..", FILE)
