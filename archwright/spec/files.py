"""Files named by the user: paths, names and safe reading."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from archwright.spec.errors import UserError

KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def expanded(name: str) -> Path:
    """Return the path of a name that may begin with `~` or `~user`.

    Raises:
        UserError: The user's home folder is unknown.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError:
        user = Path(name).parts[0]
        raise UserError(
            f'"{name}": no home folder is known for "{user}". Write the folder out.'
        ) from None


def irregular(path: Path) -> str:
    """Return "a pipe", "a device" or "a socket" if reading a path may block forever; else ""."""
    try:
        return KINDS.get(stat.S_IFMT(path.stat().st_mode), "")
    except OSError:
        return ""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read its bytes.

    Raises:
        OSError: As in `open`.
        UserError: It is a pipe, a device or a socket.
    """
    if kind := irregular(path):
        raise UserError(f"{path}: found {kind}; expected a file")
    return path.open("rb")


def check_utf8(path: Path) -> None:
    """Refuse a name that JSON files and libraries do not accept."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"{path}: found a name that is not UTF-8. Rename it.") from None


def check_inside(path: Path, folder: Path) -> None:
    """Refuse a link to a file outside an untrusted folder; a hub's `blobs` next to `snapshots` count as inside."""
    root, target = folder.resolve(), path.resolve()
    blobs = [root.parents[1] / "blobs"] if root.parent.name == "snapshots" else []
    if not any(map(target.is_relative_to, (root, *blobs))):
        raise UserError(
            f"{path}: found a link to {target}; expected a file of {folder}. Put a copy there if it is meant."
        )


def read_text(path: Path, most: int, what: str = "text") -> str:
    """Return the text of a UTF-8 file of at most `most` bytes; errors call its content `what`.

    Raises:
        OSError: As in `open` and `read`, always with the file's name.
        UserError: It is not a regular file, is too large, or is not UTF-8.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            content = file.read(most + 1)
        except OSError as error:  # errors of read() lack the file name
            raise OSError(error.errno, error.strerror, str(path)) from None
    if len(content) > most:
        raise UserError(
            f"{path}: has {max(size, most):,} bytes; expected {what} of at most {most:,}"
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; expected {what}") from None
