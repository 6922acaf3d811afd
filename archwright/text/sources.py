"""Resolving paths, folders, globs, datasets, `-` and `stdlib` to files."""

import atexit
import glob
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from archwright.files import clear_errors
from archwright.spec.data import STDLIB
from archwright.spec.errors import UserError, hub_hint, nearest
from archwright.spec.files import expanded, irregular
from archwright.spec.tasks import Task
from archwright.text.tables import BY_NAME, SUFFIXES, dataset_files, named_files

STDIN = "-"
NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
"""Folders of the standard library that `stdlib` leaves out."""


@dataclass(frozen=True)
class TextFile:
    """A file to read. Its name is relative to the user's source and decides the split.

    An implicit file (from a folder or a glob) is skipped and counted if it is binary. A file of the standard library is
    also skipped if it is not UTF-8.
    """

    path: Path
    name: str
    implicit: bool = False
    library: bool = False

    @property
    def jsonl(self) -> bool:
        """True if each line is a record."""
        return self.path.suffix.lower() in {".jsonl", ".ndjson"}

    @property
    def is_table(self) -> bool:
        """True if each row of a column is a document."""
        return self.path.suffix.lower() in SUFFIXES


def find_files(sources: Iterable[str], key: str = "data.text") -> tuple[TextFile, ...]:
    """Return the files of `sources`, in order and without duplicates.

    Raises:
        UserError: Missing sources, or sources without files, one per line.
    """
    files: dict[Path, TextFile] = {}
    mistakes = []
    for source in sources:
        try:
            for file in _files_of(source):
                files.setdefault(file.path.resolve(), file)
        except UserError as error:
            mistakes += [f"{key}: {line}" for line in error.lines]
    if mistakes:
        raise UserError(*mistakes)
    return tuple(files.values())


def _files_of(source: str) -> list[TextFile]:
    if source == STDIN:
        return [TextFile(_spooled(), STDIN)]
    if source == STDLIB:
        return _library()
    if not source.strip():
        raise UserError('expected a file, folder, glob, "-" or "stdlib", found an empty name.')
    if source.startswith(BY_NAME):
        return [TextFile(path, path.name) for path in named_files(source)]
    path = expanded(source)
    if kind := irregular(path):
        raise UserError(
            f'"{source}" is {kind}, not a file. Use "-" to read text from standard input.'
        )
    if path.is_dir():
        if (tables := dataset_files(path)) is not None:
            return _some([TextFile(p, p.name) for p in tables], source)
        return _some([TextFile(p, _relative(p, path), implicit=True) for p in _walk(path)], source)
    if path.exists():
        return [TextFile(path, path.name)]
    if glob.has_magic(source):
        return _some(_matches(str(path)), source)
    raise UserError(_missing(source, path))


def _some(files: list[TextFile], source: str) -> list[TextFile]:
    if not files:
        raise UserError(f'no file found in "{source}". Name a file, a folder or a glob with text.')
    return files


def _missing(source: str, path: Path) -> str:
    """Return the error for a missing path, with the nearest existing name."""
    parent = path.parent
    if not parent.is_dir():
        hint = hub_hint(source, f'write "{BY_NAME}{{0}}"')
        return f'no file or folder "{source}": there is no folder "{parent}".{hint}'
    here = parent == Path() and path.name == source
    names = [STDLIB, *Task.choices().keys() - {"none"}] if here else []
    with suppress(OSError):
        names += [entry.name for entry in parent.iterdir()]
    return f'no file or folder "{source}".{nearest(path.name, names)}'


def _walk(folder: Path, without: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Yield the visible files below a folder, sorted by relative path."""
    paths = []
    for parent, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in without]
        paths += [Path(parent, f) for f in files if not f.startswith(".")]
    yield from sorted((p for p in paths if p.is_file()), key=lambda p: _relative(p, folder))


def _refuse(error: OSError) -> None:
    raise UserError(f'cannot read "{error.filename}": {error.strerror}.')


def _matches(pattern: str) -> list[TextFile]:
    """Return the files of a glob. Names are relative to the part before the first wildcard."""
    parts = Path(pattern).parts
    fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    root = Path(*parts[:fixed])
    try:
        paths = sorted(p for p in root.glob("/".join(parts[fixed:])) if p.is_file())
    except ValueError as error:
        raise UserError(f'"{pattern}" is not a glob: {error}.') from error
    files = [TextFile(p, _relative(p, root), implicit=True) for p in paths]
    return [f for f in files if not any(part.startswith(".") for part in Path(f.name).parts)]


def _library() -> list[TextFile]:
    """Return the source files of the running interpreter's standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = (p for p in _walk(root, frozenset(NOT_LIBRARY)) if p.suffix == ".py")
    files = [TextFile(p, _relative(p, root), implicit=True, library=True) for p in paths]
    if not files:
        raise UserError(
            f'"{STDLIB}": this Python has no source files in {root}. Name a text of your own.'
        )
    return files


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _spooled() -> Path:
    """Copy standard input to a temporary file, which is removed at the exit of the process."""
    with (
        clear_errors(Path(tempfile.gettempdir()), "TMPDIR"),
        tempfile.NamedTemporaryFile(prefix="archwright-", delete=False) as file,
    ):
        path = Path(file.name)
        atexit.register(path.unlink, missing_ok=True)
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    return path
