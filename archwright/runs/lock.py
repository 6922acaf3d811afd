"""One process per run folder: a lock of the operating system, which dies with its process."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from archwright.files import atomic_write, check_replaceable, clear_errors
from archwright.spec.errors import UserError


class BusyError(UserError):
    """Another process holds the lock, or may."""


@dataclass(frozen=True, config=ConfigDict(strict=True, defer_build=True))
class Holder:
    """The process that holds a lock, or did when it died."""

    pid: Annotated[int, Field(gt=0, lt=2**31)]
    host: str
    since: str
    started: Annotated[float, Field(allow_inf_nan=False)]
    """When the process itself began, in seconds of the epoch: numbers of processes are reused."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


@contextlib.contextmanager
def locked(lock_file: Path, holder_file: Path) -> Iterator[Holder | None]:
    """Hold the lock for the block; yield its former holder if that died without letting go.

    A network drive may not carry locks between hosts, so what a process of another host left
    behind counts as a lock too.

    Raises:
        BusyError: another process holds it; the message says which, and since when.
    """
    # Only training locks; `archwright list` need not wait for this import.
    from filelock import FileLock, Timeout

    lock = FileLock(lock_file)
    check_replaceable(lock_file)  # whatever a link leads to is no lock
    with clear_errors(lock_file):
        try:
            lock.acquire(blocking=False)
        except Timeout as error:  # an OSError, too
            raise BusyError(_busy(lock_file, read_holder(holder_file))) from error
    try:
        before = read_holder(holder_file)
        if before and not _is_gone(before):
            raise BusyError(
                f"{holder_file.parent} was taken by {before}, and from here nobody can tell whether that "
                f"still runs. If it does not, delete {holder_file} and try again."
            )
        import psutil

        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        us = Holder(os.getpid(), socket.gethostname(), now, psutil.Process().create_time())
        atomic_write(holder_file, json.dumps(asdict(us)) + "\n")
        try:
            yield before
        finally:
            with contextlib.suppress(OSError):
                if read_holder(holder_file) == us:  # else somebody removed it, and another has it
                    holder_file.unlink()
    finally:
        lock.release()


def _is_gone(holder: Holder) -> bool:
    """Return whether the process certainly runs no more."""
    import psutil

    if holder.host != socket.gethostname():
        return False
    try:
        began = float(psutil.Process(holder.pid).create_time())
        return abs(began - holder.started) > _CLOCK_SHIFT
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


_CLOCK_SHIFT = 2.0  # seconds by which a corrected clock moves the start of a process


def read_holder(path: Path) -> Holder | None:
    """Return who wrote the file; None when there is none, or what is there says nothing."""
    try:
        return TypeAdapter(Holder).validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def _busy(lock_file: Path, holder: Holder | None) -> str:
    folder = lock_file.parent
    if holder is None:
        return f"{folder} is in use by another process. Wait for it, or train with another --out."
    if _is_gone(holder):
        return (
            f"{folder} is still in use by a process that {holder} started and left behind. "
            f"End that one first."
        )
    return f"{folder} is in use by {holder}. Wait for it, stop it, or train with another --out."
