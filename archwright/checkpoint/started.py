"""Records of unfinished starts: names of a verb's new files in a folder.

    {"verb": "train", "pid": 12, "folder": 3456}    verb, process ID, and inode of the folder
    {"name": "requested.toml"}                      a new file, recorded before it is created

The record is removed once the folder is complete. Until then, another process may remove the recorded files, but no
other files. In a copy of the folder, the record is ignored because the inode differs.
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
"""Start of a record."""


class StartRecord:
    """Record of a verb's files in an incomplete folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / FILE

    @property
    def names(self) -> frozenset[str] | None:
        """Recorded names; None if there is no record of this folder."""
        lines = self._lines
        return None if lines is None else frozenset(line["name"] for line in lines[1:])

    def others(self) -> list[str]:
        """Return the unrecorded names in the folder, sorted."""
        entries = sorted(path.name for path in self.folder.glob("*"))
        names = self.names
        if names is None:
            return entries
        return [name for name in entries if name != FILE and _written_as(name) not in names]

    def begin(self, verb: str) -> None:
        """Begin a record unless one exists; the folder must be empty otherwise."""
        if not self._lines:
            number = self.folder.stat().st_ino
            self._append({"verb": verb, "pid": os.getpid(), "folder": number})

    def add(self, *names: str) -> None:
        """Record unused names; without a record, do nothing."""
        recorded = self.names
        if recorded is None:
            return
        for name in names:
            if name not in recorded and not os.path.lexists(self.folder / name):
                self._append({"name": name})

    def undo(self, *, keep: Collection[str] = ()) -> None:
        """Remove the recorded files except `keep`; without `keep`, also the record."""
        names = self.names
        if names is None:
            return
        for path in self.folder.glob("*"):
            if _written_as(path.name) in names - set(keep) and not path.is_symlink():
                files.remove(path)  # links are never created here
        if not keep:
            self.finish()

    def finish(self) -> None:
        """Remove the record; the files stay."""
        if self.names is not None:
            with contextlib.suppress(OSError):
                self.file.unlink()

    @property
    def _lines(self) -> list[dict[str, Any]] | None:
        """Complete lines; empty if the first is cut off, None if invalid."""
        try:
            if not stat.S_ISREG(self.file.lstat().st_mode):
                return None
            content = self.file.read_bytes()
            lines = [json.loads(line) for line in content.split(b"\n")[:-1]]
            cut_off = not lines and (content.startswith(_FIRST) or _FIRST.startswith(content))
            is_valid = cut_off or (
                type(lines[0]["pid"]) is int
                and lines[0]["folder"] == self.folder.stat().st_ino
                and all(_is_plain(line["name"]) for line in lines[1:])
            )
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return None
        return lines if is_valid else None

    def _append(self, line: dict[str, Any]) -> None:
        """Append a line durably; if that fails, restore the file."""
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
    """Create a folder and missing parents; on failure, remove the empty new ones."""
    made = missing(path)
    try:
        with files.clear_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        remove_empty(made)
        raise


def missing(path: Path) -> list[Path]:
    """Return `path` and its parents if they do not exist, `path` first."""
    return [folder for folder in (path, *path.parents) if not folder.exists()]


def remove_empty(folders: list[Path]) -> None:
    """Remove the empty folders, in order."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def drafted(folder: Path) -> Iterator[Path]:
    """Yield a hidden draft folder, renamed to `folder` after the block.

    `folder` must be new or empty. If the block fails, the draft is removed. Drafts of dead processes are removed first.
    """
    with files.clear_errors(folder), folders_made(folder.parent):
        for abandoned in files.abandoned(folder.parent, re.escape(folder.name)):
            files.remove(abandoned)
        draft = files.temporary_name(folder)
        with files.publishing(draft, folder):
            yield draft


def _written_as(name: str) -> str:
    """Return the final name of a temporary file, or `name` itself."""
    match = files.TEMPORARY.fullmatch(name)
    return match["name"] if match else name


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name and name not in ("", "..", FILE)
