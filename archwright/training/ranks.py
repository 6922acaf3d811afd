"""How the ranks of a run join and leave it.

Every rank runs the same loop. Rank 0 alone reads clocks and signals, calls callbacks, prints, and writes files, and
shares the results by `Group.first`. Checkpoints are the exception: each rank writes its shards.
"""

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from signal import SIG_IGN, SIGINT, SIGTERM
from types import FrameType
from typing import TYPE_CHECKING

import torch

from archwright.machine.out_of_memory import explain_out_of_memory
from archwright.runs import RunFolder
from archwright.scale.launch import EndedError, end_with_torchrun, launched
from archwright.scale.layout import Layout
from archwright.spec.errors import UserError
from archwright.training.data import Material, reload_data
from archwright.training.interrupt import handling
from archwright.training.loop import DivergedError
from archwright.training.resolve import resolved_session
from archwright.training.session import Session
from archwright.training.sharded import ShardedSession

if TYPE_CHECKING:
    from archwright.scale.group import Group

LOOK_SECONDS = 0.02
"""Time between checks whether all ranks have read the data."""
_READ = "read"
_ENDED_BEFORE = "this run had ended when torchrun started it again, so all end"
"""Reported if torchrun restarts a run that was stopped or diverged, and would end again."""


@contextlib.contextmanager
def sharded(
    folder: RunFolder, material: Material, layout: Layout, device: str
) -> Iterator[Session]:
    """Begin a resolved run on all ranks, and yield the session of rank 0.

    Raises:
        LostError: another rank has died or does not answer.
        EndedError: another rank gave a reason to end, or torchrun restarted a run that had ended for good.
    """
    from archwright.scale.group import LEAVE, Group, check_gpus

    launch = launched()
    assert launch is not None, "a layout of several ranks needs torchrun"
    if device == "cuda":
        check_gpus(launch, torch.cuda.device_count())
    layout = layout.with_precision(folder.spec.machine.precision)
    group, path = Group(launch), str(folder.path.resolve())
    end = group.end_before(path)
    group.remember_end(path, end)
    if end is not None:
        group.begin({"do": LEAVE, "error": end})
        raise EndedError(**end, is_first=True)
    with _joined(group, path):
        group.begin({"do": "train", "folder": path, "device": device, "layout": [*layout]})
        group.report(_READ)
        group.first(lambda: _wait_for_readers(group))
        yield resolved_session(folder, material, group, ShardedSession)[0]


def follow(program: Callable[[Session, RunFolder, Material], object]) -> RunFolder:
    """Join the run that rank 0 begins, run a program, and return the run's folder; for all other ranks.

    Raises:
        UserError: a mistake that only this rank noticed, with its number.
        LostError: another rank has died or does not answer.
        EndedError: another rank refused the run, or ended it early.
    """
    from archwright.scale.group import LEAVE, Group

    launch = launched()
    assert launch is not None, "a single process has no rank to follow"
    end_with_torchrun()
    group = Group(launch)
    try:
        with (
            warnings.catch_warnings(),
            _joined(group),
            _signals_shared(group),
            explain_out_of_memory(),
        ):
            warnings.simplefilter("ignore")  # rank 0 has warned
            order = group.wait_to_begin()
            folder = RunFolder(order.get("folder", ""))
            if order["do"] != LEAVE:
                material = _read_meanwhile(folder, group)
                session, _ = resolved_session(folder, material, group, ShardedSession)
                program(session, folder, material)
    except UserError as error:
        who = f"process {launch.rank} of {launch.size}"
        raise UserError(*(f"{who}: {line}" for line in error.lines)) from error
    if "error" in order:
        raise EndedError(**order["error"])
    return folder


@contextlib.contextmanager
def _joined(group: "Group", path: str = "") -> Iterator[None]:
    """Leave the group after the block: in order if all ranks end alike, otherwise at once.

    Args:
        path: run folder; rank 0 remembers that a run was stopped or diverged.
    """
    from archwright.scale.group import described

    try:
        with group.together():
            yield
        group.leave()
    except BaseException as error:
        rank, size = group.launch[:2]
        who = f"process {rank} of {size}" if rank else "the first process"
        end = described(error, f"{who} has ended this run")
        if path and (end["signal"] is not None or isinstance(error, DivergedError)):
            with contextlib.suppress(RuntimeError):  # the store has ended, and so has torchrun
                group.remember_end(path, described(error, _ENDED_BEFORE))
        if group.agreed:
            with contextlib.suppress(RuntimeError, EndedError):
                group.leave()
        group.abandon(end)
        raise


def _wait_for_readers(group: "Group") -> None:
    """Wait until all ranks have read the data; the first rank on a machine may have to verify it."""
    while group.reports(_READ) is None:
        time.sleep(LOOK_SECONDS)


def _read_meanwhile(folder: RunFolder, group: "Group") -> Material:
    """Read the data of a run in a thread while this rank waits for rank 0."""
    materials: list[Material] = []

    def read() -> None:
        problems = list[str]()
        try:
            materials.append(reload_data(folder.spec, folder))
        except UserError as error:
            problems += error.lines
        except BaseException as error:
            problems.append(f"{type(error).__name__}: {error}")
        with contextlib.suppress(RuntimeError):  # rank 0 has ended
            group.report(_READ, problems=problems)

    # A daemon, because nobody waits for it if another rank has ended.
    threading.Thread(target=read, daemon=True).start()
    group.wait_for_first()
    return materials[0]


def _signals_shared(group: "Group") -> contextlib.AbstractContextManager[None]:
    """Ignore Ctrl-C, which rank 0 handles, and share SIGTERM: a drained machine sends it to its own ranks only."""

    def ask(number: int, frame: FrameType | None) -> None:
        group.stop_asked = True

    return handling({SIGINT: SIG_IGN, SIGTERM: ask})


@contextlib.contextmanager
def leading() -> Iterator[None]:
    """Report exceptions before a run begins to the other ranks, which wait for it.

    Otherwise, a script that catches the exception and trains another run would confuse the two.
    """
    launch = launched()
    if launch is None:
        yield
        return
    from archwright.scale.group import LEAVE, Group, described

    before = Group.number
    try:
        yield
    except Exception as error:  # after any other, rank 0 ends, and torchrun ends the others
        if Group.number == before:
            end = described(error, "the first process has refused this run")
            Group(launch).begin({"do": LEAVE, "error": end})
        raise


def dismiss(folder: RunFolder) -> None:
    """Release the other ranks from a run that is finished already."""
    if (launch := launched()) is not None:
        from archwright.scale.group import LEAVE, Group

        Group(launch).begin({"do": LEAVE, "folder": str(folder.path.resolve())})


def is_stuck() -> bool:
    """True if a run failed so that these processes cannot train another one."""
    if launched() is None:
        return False
    from archwright.scale.group import Group

    return Group.is_stuck
