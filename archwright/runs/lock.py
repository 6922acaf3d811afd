"""One process per run folder: operating-system locks, released when a process dies."""

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
    """Another process holds the lock, or may hold it."""


@dataclass(frozen=True, config=ConfigDict(strict=True, defer_build=True))
class Holder:
    """Current or last holder of a lock."""

    pid: Annotated[int, Field(gt=0, lt=2**31)]
    host: str
    since: str
    started: Annotated[float, Field(allow_inf_nan=False)]
    """Start of the process in seconds since 1970, because process IDs are reused."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


@contextlib.contextmanager
def locked(lock_file: Path, holder_file: Path) -> Iterator[Holder | None]:
    """Hold the lock during the block; yield the dead previous holder, if any.

    Network drives may not share locks between hosts. Therefore, a holder file of another host counts
    as a lock.

    Raises:
        BusyError: another process holds the lock; the message has its ID, host and time.
    """
    # Imported here for a fast `archwright list`: only training needs a lock.
    from filelock import FileLock, Timeout

    lock = FileLock(lock_file)
    check_replaceable(lock_file)  # a link must not be followed
    with clear_errors(lock_file):
        try:
            lock.acquire(blocking=False)
        except Timeout as error:  # a subclass of OSError
            raise BusyError(_busy(lock_file, read_holder(holder_file))) from error
    try:
        previous = read_holder(holder_file)
        if previous and not _is_gone(previous):
            raise BusyError(
                f"{holder_file.parent} was locked by {previous}. This host cannot check if it still runs. "
                f"If it does not, delete {holder_file} and try again."
            )
        import psutil

        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        us = Holder(os.getpid(), socket.gethostname(), now, psutil.Process().create_time())
        atomic_write(holder_file, json.dumps(asdict(us)) + "\n")
        try:
            yield previous
        finally:
            with contextlib.suppress(OSError):
                if read_holder(holder_file) == us:  # otherwise another process has the lock
                    holder_file.unlink()
    finally:
        lock.release()


def _is_gone(holder: Holder) -> bool:
    """True if the process has certainly ended."""
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


_CLOCK_SHIFT = 2.0  # seconds: clock corrections change process start times


def read_holder(path: Path) -> Holder | None:
    """Return the holder recorded in a file, None if missing or invalid."""
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
            f"{folder} is still in use by a child process of {holder}, which has ended. "
            f"End the child process first."
        )
    return f"{folder} is in use by {holder}. Wait for it, stop it, or train with another --out."
