"""A script that trains as one of several processes, in which something fails, or takes longer than others wait.

As torchrun starts it: `python -m tests.scale.failing SCENE WORDS...`, where WORDS are those of `archwright train`. It
prints what becomes of each run, in each process.
"""

import errno
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import archwright
from archwright import files
from archwright.checkpoint import weights
from archwright.cli import main
from archwright.runs.records import Record
from archwright.scale import connections, group
from archwright.scale.group import Group
from archwright.spec.errors import UserError
from archwright.training import finalize, loop, session

RANK, START = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
LONG = 25.0
"""Seconds that something takes for which others shall wait, longer than `PATIENCE`."""
PATIENCE = 15.0
"""Seconds that others wait otherwise, enough for a step on a machine at work."""


def striking(module: Any, name: str, strike: Callable[[], None], *, at: int = 1) -> None:
    """Let something happen in this process when a function is called for the nth time."""
    plain, left = getattr(module, name), at

    def struck(*given: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            strike()
        return plain(*given, **named)

    setattr(module, name, struck)


def refuse() -> None:
    raise UserError("disk: this one is full")


def break_down() -> None:
    raise LookupError("mine")


def stop() -> None:
    """Stop as `kill -STOP` does: this process is there, and does not answer."""
    os.kill(os.getpid(), signal.SIGSTOP)


def full_while_gathering() -> None:
    """Let the disk be full when a tensor of the weights has been gathered."""
    plain = weights.write_tensors

    def write(path: Path, tensors: Any, metadata: Any, values: Any = None) -> None:
        if values is None:  # a part of a checkpoint
            return plain(path, tensors, metadata)
        next(iter(values))
        weights.write_tensors = plain
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    weights.write_tensors = write


def runs_that_fail(words: list[str]) -> None:
    """Train runs that fail in the midst of what all processes do, and one that does not."""
    for out, victim, prepare in (
        ("gather", 0, full_while_gathering),
        ("refused", 1, lambda: striking(session, "train_step", refuse)),
        (
            "broken",
            int(os.environ["WORLD_SIZE"]) - 1,
            lambda: striking(session, "train_step", break_down),
        ),
        ("whole", -1, None),
    ):
        if victim == RANK and prepare is not None:
            prepare()
        try:
            found = archwright.train(*words, out=out, quiet=True)
        except Exception as error:
            # LookupError is what the process itself has met: in others it is of a class that all know.
            kind = "UserError" if isinstance(error, UserError) else "another"
            say(out, kind, *(word for word in ("No space", "full", "mine") if word in str(error)))
        else:
            say(out, str(found.folder.finished))


def say(*words: str) -> None:
    """Print a line at once, beside those of other processes."""
    sys.stdout.write(" ".join(words) + "\n")


def slow(words: list[str]) -> None:
    """Let what the first process does alone take longer than others wait for it."""
    connections.PATIENCE, group.WAIT_SECONDS = timedelta(seconds=PATIENCE), PATIENCE / 5

    def on_step(record: Record) -> None:
        if record["step"] == 2:
            time.sleep(LONG)

    striking(finalize, "compressors", lambda: time.sleep(LONG))
    sync = files.sync

    def sync_slowly(path: Path) -> None:
        if "model.safetensors" in path.name and path.parent.name == "slow":
            time.sleep(LONG)
        sync(path)

    files.sync = sync_slowly
    say(str(archwright.train(*words, out="slow", quiet=True, on_step=on_step).folder.finished))


def unheard() -> None:
    """Let the first process not hear that another has written its part of a checkpoint; another one is due at once."""
    loop.CHECKPOINT_SECONDS, loop.CHECKPOINT_SHARE = 0.0, 1e9
    if RANK == 1:
        striking(Group, "report", break_down, at=2)  # the first report is of the data


def diverge() -> None:
    """Let the loss of a step be no number."""
    plain, left = session.train_step, 3

    def step(*given: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        found = plain(*given, **named)
        return found if left else replace(found, loss=math.nan, finite=False)

    session.train_step = step


if __name__ == "__main__":
    scene, *words = sys.argv[1:]
    match scene:
        case "fail":
            raise SystemExit(runs_that_fail(words[1:]))
        case "slow":
            raise SystemExit(slow(words[1:]))
        case "unheard":
            unheard()
        case "diverge":
            diverge()
        case "stopped":
            connections.PATIENCE = timedelta(seconds=PATIENCE)
            if RANK == 1:
                striking(session, "train_step", stop, at=3)
        case "sigterm" if START == 0 and RANK == 1:
            striking(session, "train_step", lambda: os.kill(os.getpid(), signal.SIGTERM), at=3)
    raise SystemExit(main(words))
