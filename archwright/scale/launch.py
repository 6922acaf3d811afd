"""How this process was started: alone, or as one of several by torchrun. Imports no torch."""

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
"""What torchrun sets in the environment of each process."""


LOOK_SECONDS = 0.5
"""Time between looks at whether torchrun is still there."""


class LostError(RuntimeError):
    """Another process of the run has ended, or does not answer.

    Attributes:
        is_first: whether this process is the first to see it, and so the one to say it.
    """

    def __init__(self, what: str, *, is_first: bool) -> None:
        super().__init__(
            f"a process of this run {what}, so all end; the same command goes on from the last checkpoint"
        )
        self.is_first = is_first


class EndedError(Exception):
    """Another process has refused a run, or ended it before it was finished.

    Args:
        text: why, in one line.
        kinds: names of the classes of the exception that it raised.
        signal: number of the signal that interrupted the run; None where none did.
        is_first: whether no other process says so.
    """

    def __init__(
        self, text: str, kinds: Sequence[str], signal: int | None, *, is_first: bool = False
    ) -> None:
        super().__init__(text)
        self.kinds, self.signal, self.is_first = kinds, signal, is_first


class Launch(NamedTuple):
    """The place of a process among those that were started together."""

    rank: int
    size: int
    local_rank: int
    """Its place among those of its machine."""
    local_size: int


def launched() -> Launch | None:
    """Return the place of this process among several; None where it was started alone.

    Raises:
        UserError: what torchrun sets is no number, or too large.
    """
    if any(name not in os.environ for name in VARIABLES):
        return None
    found = Launch(*map(_number, VARIABLES[:4]))
    if found.size < 2:
        return None
    for name, most in (("RANK", found.size - 1), ("MASTER_PORT", 65535)):
        if (value := _number(name)) > most:
            raise UserError(f"{name}: found {value}; expected at most {most}. {ALONE}")
    return found


ALONE = "To train with this process alone: unset WORLD_SIZE"


def awaited(launch: Launch, seconds: float = 10.0) -> contextlib.AbstractContextManager[None]:
    """Say on standard error which processes are awaited, if the block takes longer."""
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    others = "the other processes" if launch.rank == 0 else "process 0"
    line = f"process {launch.rank} of {launch.size} waits for {others} at {place}. {ALONE}"
    return reported_late(seconds, lambda: print(f"archwright: {line}", file=sys.stderr, flush=True))


def check_launch() -> None:
    """Refuse processes that another launcher started, each of which would train the whole run for itself.

    Raises:
        UserError: there are several of them, and what torchrun sets is not there.
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
    """Tell whether this process decides, writes and prints: it is alone, or the first of several."""
    found = launched()
    return found is None or found.rank == 0


@cache
def end_with_torchrun() -> None:
    """End this process, from a thread of its own, once torchrun, which has started it, was killed: else it would go on
    where nobody sees it, and the same command would be refused until it is done."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(torchrun: int) -> None:
    while os.getppid() == torchrun:
        time.sleep(LOOK_SECONDS)
    if is_first():
        line = "torchrun has ended, so all end; the same command goes on from the last checkpoint"
        print(f"archwright: {line}", file=sys.stderr, flush=True)
    os._exit(1)
