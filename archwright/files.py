"""All or nothing: writing files and folders so that no reader ever meets half of one."""

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
    """A file that is cut short, changed or missing: an older copy may still be good."""


def check_replaceable(path: Path, is_ours: Callable[[Path], bool] = lambda _: True) -> None:
    """Refuse to write over anything but a regular file of ours; by default its place in a folder of ours is enough."""
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
    """Open a file of ours at its end, and never what a link in its place leads to."""
    check_replaceable(path)
    no_link = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
    return open(path, mode, opener=lambda p, flags: os.open(p, flags | no_link, 0o666), **options)


def check_folders(folder: Path, *names: str) -> None:
    """Refuse links in place of folders inside `folder`, which may be a stranger's."""
    files.check_utf8(folder)
    for path in (folder / name for name in names):
        if path.is_symlink():
            raise UserError(
                f"{path}: found a link to {path.readlink()}; expected a folder. Put what it leads to in its place."
            )


def atomic_write(path: str | Path, content: bytes | str, *, setting: str = "") -> None:
    """Put `content` at `path`: at any instant a reader sees the old file or the new one, whole.

    Args:
        setting: as of `clear_errors`.

    Raises:
        UserError: the disk is full or the folder read-only; the old file is then untouched.
    """
    data = content.encode() if isinstance(content, str) else content
    with replacing(path, setting=setting) as temporary, temporary.open("xb") as file:
        file.write(data)


def temporary_name(path: Path) -> Path:
    """Return a hidden name next to `path` that nobody can guess."""
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d{1,10})\.[0-9a-f]{8}\.tmp")


@contextlib.contextmanager
def replacing(path: str | Path, *, setting: str = "") -> Iterator[Path]:
    """Yield a new path, to be created; the file there takes the place of `path` when the block is done."""
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
    """Make the folder `draft`; when the block is done it takes the place of `folder`, which is missing or empty.

    All in it is then on the disk. Nothing is left of it if the block fails.
    """
    draft.mkdir()
    try:
        yield
        for path in (*draft.rglob("*"), draft):
            sync(path)
        if os.name == "nt" and folder.exists():  # elsewhere an empty folder makes place
            folder.rmdir()
        draft.replace(folder)
        sync(folder.parent)
    except BaseException:
        remove(draft)
        raise


@contextlib.contextmanager
def clear_errors(path: Path, setting: str = "") -> Iterator[None]:
    """Turn the operating system's refusal to write `path` into one line for the user.

    Args:
        setting: variable of the environment that says where `path` is; by default the user has named it.

    Raises:
        UserError: that line; or as `check_utf8`, before anything is done.
    """
    files.check_utf8(path)
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {_reason(error, path, setting)}") from error


def sync(path: Path) -> None:
    """Return when the file or folder at `path` would survive a power cut."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":  # Windows cannot open a folder; its renames are journalled
        return
    # Windows refuses to flush a descriptor that may not write.
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and user-space file systems do not know the call for folders.
        if not is_folder or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def sweep(folder: Path, *names: str) -> None:
    """Remove what `replacing` left in `folder` where its process died; `names` are patterns, by default of all."""
    for path in abandoned(folder, *names):
        with contextlib.suppress(OSError):
            path.unlink()


def abandoned(folder: Path, *names: str) -> Iterator[Path]:
    """Yield what `sweep` removes; in a folder that machines share, a process of another one may be writing it."""
    wanted = re.compile("|".join(names) or ".+")
    for path in folder.glob(".*.tmp"):
        match = TEMPORARY.fullmatch(path.name)
        if match is None or not wanted.fullmatch(match["name"]) or path.is_symlink():
            continue
        if is_abandoned(path, int(match["pid"])):
            yield path


def stamp(path: str | Path) -> tuple[int, int, int]:
    """Return inode, size and time of a file, which differ once another is in its place or its content changes."""
    found = os.stat(path)  # noqa: PTH116  (of a string, in a third of the time)
    return found.st_ino, found.st_size, found.st_mtime_ns


def state_of(paths: Mapping[str, Path]) -> dict[str, Any]:
    """Return what changes when the content of some files may have, or the machine is started again: sizes, times and
    inodes by the names that are given."""
    found = {name: path.stat() for name, path in paths.items()}
    files = {n: [s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for n, s in found.items()}
    return {"boot": _boot(), "files": files}


def machine_file(folder: Path, name: str, state: Mapping[str, Any]) -> Path:
    """Return where this machine keeps what holds for a `state_of` files; other machines keep theirs beside it."""
    boot = hashlib.blake2b(state["boot"].encode(), digest_size=8).hexdigest()
    return folder / f"{name}-{boot}.json"


def write_machine_file(place: Path, values: Mapping[str, Any], name: str) -> None:
    """Write `values` to a `machine_file`, and remove those of former starts of this machine.

    Raises:
        UserError: as `atomic_write`.
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
    """Return the object of a JSON file; an empty one where there is none."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_abandoned(path: Path, pid: int) -> bool:
    """Return whether nobody writes `path` any more: its process is dead on this machine, or it is a day old."""
    import psutil

    with contextlib.suppress(OSError):
        lives = pid < 2**31 and psutil.pid_exists(pid)
        return not lives or time.time() - path.stat().st_mtime > _DAY
    return False


_DAY = 86_400.0  # seconds


def remove(path: Path) -> None:
    """Remove a file, a link (not what it leads to) or a folder, as far as that is allowed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove `folder`, hidden first, so that dying half-way leaves nothing that looks whole."""
    hidden = folder.with_name(f".tmp-removed-{folder.name.lstrip('.')}")
    shutil.rmtree(hidden, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        folder.replace(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _boot() -> str:
    """Return what differs after each start of the machine, and from that of any other."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        import psutil

        # Two machines may have been started at one time.
        return f"{socket.gethostname()} {psutil.boot_time()}"


def _reason(error: OSError, path: Path, setting: str) -> str:
    """Say what went wrong and what to do, ending in a full stop."""
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
"""Errors of a process without descriptors or memory; nothing is wrong with its files."""


def _free(path: Path) -> str:
    for folder in path.absolute().parents:
        if folder.exists():
            return f" ({shutil.disk_usage(folder).free / 1e6:.1f} MB free)"
    return ""
