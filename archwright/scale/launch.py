"""Rank and world size of this process. Imports no torch."""

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from functools import cache
from threading import Thread
from typing import NamedTuple

from archwright.progress import reported_late
from archwright.spec.errors import UserError

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun sets."""

LOOK_SECONDS = 0.5
"""Seconds between checks that torchrun is running."""


class LostError(RuntimeError):
    """Another rank of the run has ended or does not answer.

    Attributes:
        is_first: True if this rank is the first to notice, and prints the error.
    """

    def __init__(self, what: str, *, is_first: bool) -> None:
        super().__init__(
            f"a process of this run {what}, so all end; the same command goes on from the last checkpoint"
        )
        self.is_first = is_first


class EndedError(Exception):
    """Another rank has refused a run or ended it early.

    Args:
        text: Reason, without line breaks.
        kinds: Class names of its exception.
        signal: Number of the signal that interrupted the run, if any.
        is_first: True if no other rank prints the error.
    """

    def __init__(
        self, text: str, kinds: Sequence[str], signal: int | None, *, is_first: bool = False
    ) -> None:
        super().__init__(text)
        self.kinds, self.signal, self.is_first = kinds, signal, is_first


class Launch(NamedTuple):
    """Place of a process among those that torchrun started."""

    rank: int
    size: int
    local_rank: int
    """Rank among the processes of its machine."""
    local_size: int


def launched() -> Launch | None:
    """Return the place of this process; None if it is a single one.

    Raises:
        UserError: A variable of torchrun is no number, or too large.
    """
    if any(name not in os.environ for name in VARIABLES):
        return None
    launch = Launch(*map(_number, VARIABLES[:4]))
    if launch.size < 2:
        return None
    for name, most in (("RANK", launch.size - 1), ("MASTER_PORT", 65535)):
        if (value := _number(name)) > most:
            raise UserError(f"{name}: found {value}; expected at most {most}. {ALONE}")
    return launch


ALONE = "To train with this process alone: unset WORLD_SIZE"


def awaited(launch: Launch, seconds: float = 10.0) -> contextlib.AbstractContextManager[None]:
    """Print the awaited ranks on standard error, if the block takes longer."""
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    others = "the other processes" if launch.rank == 0 else "process 0"
    line = f"process {launch.rank} of {launch.size} waits for {others} at {place}. {ALONE}"
    return reported_late(seconds, lambda: print(f"archwright: {line}", file=sys.stderr, flush=True))


def check_launch() -> None:
    """Refuse processes of another launcher, because each one would train the complete run.

    Raises:
        UserError: WORLD_SIZE is above 1, and other variables of torchrun are missing.
    """
    missing = [name for name in VARIABLES if name not in os.environ]
    if missing and "WORLD_SIZE" in os.environ and (size := _number("WORLD_SIZE")) > 1:
        raise UserError(
            f"WORLD_SIZE: found {size} without {missing[0]}; start the processes by torchrun: torchrun "
            f"--nproc-per-node {size} --no-python archwright train ... {ALONE}"
        )


def _number(name: str) -> int:
    value = os.environ[name]
    if not value.isdecimal():
        raise UserError(f'{name}: found "{value}"; expected a number, as torchrun sets it')
    return int(value)


def is_first() -> bool:
    """True if this process decides, writes and prints: a single process, or rank 0."""
    launch = launched()
    return launch is None or launch.rank == 0


@cache
def end_with_torchrun() -> None:
    """End this process when torchrun, its parent, is killed; checked in a thread.

    Otherwise it would continue unnoticed and hold the run's lock."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(torchrun: int) -> None:
    while os.getppid() == torchrun:
        time.sleep(LOOK_SECONDS)
    if is_first():
        line = "torchrun has ended, so all end; the same command goes on from the last checkpoint"
        print(f"archwright: {line}", file=sys.stderr, flush=True)
    os._exit(1)
