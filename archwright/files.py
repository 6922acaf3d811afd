"""Atomic writes of files and folders: readers never see a partial one."""

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from archwright.spec import files
from archwright.spec.errors import UserError


class DamagedError(UserError):
    """A truncated, changed or missing file. An older copy may be intact."""


def check_replaceable(path: Path, is_ours: Callable[[Path], bool] = lambda _: True) -> None:
    """Refuse to overwrite a folder, a link or a foreign file (`is_ours`)."""
    try:
        mode = path.lstat().st_mode
    except OSError:  # it is missing, or writing raises the same
        return
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "something else")
        raise UserError(f"{path} cannot be written: found {kind}; expected a file or nothing.")
    if not is_ours(path):
        raise UserError(
            f"{path} cannot be written: found a file that archwright did not write, or that was changed since. "
            "Move it away, or name another."
        )


KINDS = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", **files.KINDS}


def open_to_append(path: Path, mode: str = "a", **options: Any) -> IO[Any]:
    """Open a regular file for appending, never through a link."""
    check_replaceable(path)
    no_link = getattr(os, "O_NOFOLLOW", 0)  # Windows lacks it
    return open(path, mode, opener=lambda p, flags: os.open(p, flags | no_link, 0o666), **options)


def check_folders(folder: Path, *names: str) -> None:
    """Refuse symbolic links as subfolders, since `folder` may be untrusted."""
    files.check_utf8(folder)
    for path in (folder / name for name in names):
        if path.is_symlink():
            raise UserError(
                f"{path}: found a link to {path.readlink()}; expected a folder. Replace the link with its target."
            )


def atomic_write(path: str | Path, content: bytes | str, *, setting: str = "") -> None:
    """Replace a file atomically: readers see the old or the new content.

    Args:
        setting: See `clear_errors`.

    Raises:
        UserError: The disk is full or the folder is read-only; the old file then stays.
    """
    data = content.encode() if isinstance(content, str) else content
    with replacing(path, setting=setting) as temporary, temporary.open("xb") as file:
        file.write(data)


def temporary_name(path: Path) -> Path:
    """Return a hidden, unpredictable name in the folder of `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d{1,10})\.[0-9a-f]{8}\.tmp")


@contextlib.contextmanager
def replacing(path: str | Path, *, setting: str = "") -> Iterator[Path]:
    """Yield a temporary path to create; it is renamed to `path` afterwards."""
    path = Path(path)
    check_replaceable(path)
    with clear_errors(path, setting):
        temporary = temporary_name(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def publishing(draft: Path, folder: Path) -> Iterator[None]:
    """Create the folder `draft`; rename it to `folder` when the block ends.

    `folder` must be missing or empty. All files are on disk before the rename. If the block fails, `draft` is removed.
    """
    draft.mkdir()
    try:
        yield
        for path in (*draft.rglob("*"), draft):
            sync(path)
        if os.name == "nt" and folder.exists():  # elsewhere the rename replaces an empty folder
            folder.rmdir()
        draft.replace(folder)
        sync(folder.parent)
    except BaseException:
        remove(draft)
        raise


@contextlib.contextmanager
def clear_errors(path: Path, setting: str = "") -> Iterator[None]:
    """Turn operating-system errors of writing `path` into a UserError.

    Args:
        setting: Environment variable that determines `path`; empty if the user named the path.

    Raises:
        UserError: `path` cannot be written, or its name is not UTF-8 (checked before the block).
    """
    files.check_utf8(path)
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {_reason(error, path, setting)}") from error


def sync(path: Path) -> None:
    """Flush the file or folder at `path` to disk."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":  # Windows cannot open a folder; its renames are journalled
        return
    # Windows refuses to flush a descriptor that may not write.
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and user-space file systems cannot flush folders.
        if not is_folder or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def sweep(folder: Path, *names: str) -> None:
    """Remove `abandoned` files. `names`: patterns of final names (default: all)."""
    for path in abandoned(folder, *names):
        with contextlib.suppress(OSError):
            path.unlink()


def abandoned(folder: Path, *names: str) -> Iterator[Path]:
    """Yield temporary files of dead processes. Live processes of other machines count as dead."""
    pattern = re.compile("|".join(names) or ".+")
    for path in folder.glob(".*.tmp"):
        match = TEMPORARY.fullmatch(path.name)
        if match is None or not pattern.fullmatch(match["name"]) or path.is_symlink():
            continue
        if is_abandoned(path, int(match["pid"])):
            yield path


def stamp(path: str | Path) -> tuple[int, int, int]:
    """Return inode, size and modification time (ns) of a file, to detect changes."""
    status = os.stat(path)  # noqa: PTH116  (three times as fast as Path.stat)
    return status.st_ino, status.st_size, status.st_mtime_ns


def state_of(paths: Mapping[str, Path]) -> dict[str, Any]:
    """Return sizes, times and inodes of files, and the machine's boot ID."""
    stats = {name: path.stat() for name, path in paths.items()}
    files = {n: [s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for n, s in stats.items()}
    return {"boot": _boot(), "files": files}


def machine_file(folder: Path, name: str, state: Mapping[str, Any]) -> Path:
    """Return a path specific to the boot in `state` (see `state_of`)."""
    boot = hashlib.blake2b(state["boot"].encode(), digest_size=8).hexdigest()
    return folder / f"{name}-{boot}.json"


def write_machine_file(place: Path, values: Mapping[str, Any], name: str) -> None:
    """Write `values` to a `machine_file`; remove files of earlier boots.

    Raises:
        UserError: See `atomic_write`.
    """
    host = socket.gethostname()
    sweep(place.parent, re.escape(place.name))
    if place.is_symlink():
        remove(place)
    atomic_write(place, json.dumps({"host": host, **values}) + "\n")
    for path in place.parent.glob(f"{name}-*.json"):
        if path != place and read_object(path).get("host") == host:
            remove(path)


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Empty if the file is missing or damaged."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def is_abandoned(path: Path, pid: int) -> bool:
    """True if the writer is dead on this machine, or the file is a day old."""
    import psutil

    with contextlib.suppress(OSError):
        lives = pid < 2**31 and psutil.pid_exists(pid)
        return not lives or time.time() - path.stat().st_mtime > _DAY
    return False


_DAY = 86_400.0  # seconds


def remove(path: Path) -> None:
    """Remove a file, link (not its target) or folder, ignoring errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Hide a folder, then remove it. An interruption leaves no partial folder visible."""
    hidden = folder.with_name(f".tmp-removed-{folder.name.lstrip('.')}")
    shutil.rmtree(hidden, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        folder.replace(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _boot() -> str:
    """Return an ID of the machine's current boot, unique across machines."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        import psutil

        # Two machines may boot at the same time.
        return f"{socket.gethostname()} {psutil.boot_time()}"


def _reason(error: OSError, path: Path, setting: str) -> str:
    """Return the cause and a remedy, ending in a full stop."""
    what = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        elsewhere = (
            f"set {setting} to a folder on another disk" if setting else "choose another folder"
        )
        return f"{what}{_free(path)}. Free some space, or {elsewhere}."
    if setting:
        return f"{what}. Set {setting} to a folder that you may write to."
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{what}. Choose a folder that you may write to."
    return f"{what}."


EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of a process out of descriptors or memory. Its files are intact."""


def _free(path: Path) -> str:
    for folder in path.absolute().parents:
        if folder.exists():
            return f" ({shutil.disk_usage(folder).free / 1e6:.1f} MB free)"
    return ""
