"""archwright's command as one of the processes that torchrun starts, struck where a plan says.

As a module that torchrun starts: `python -m tests.faults.ranks PLAN WORDS...`. PLAN is a JSON file of a `Plan`, which
has a blow for each start of the processes; after those that there are, nothing is struck. The process that a blow
waits for kills itself, others, all of them or torchrun too, or has a full disk from then on. Just before, it writes
down what it was doing then, so that only kills that happened are counted, and as what they were.
"""

import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from archwright.checkpoint import steps
from archwright.cli import main
from tests.faults.disk import FULL, REMOVALS, Blow, Disk

TRAINING, WRITING, SEALING, ENDING = "training", "writing", "sealing", "ending"
PHASES = (TRAINING, WRITING, SEALING, ENDING)
"""What a process does: it trains; writes what it holds of a checkpoint, beside that; the first one lets a checkpoint
count that all have written, and makes weights, sample and page at the end."""
TORCHRUN = -1
"""Stands among victims for what has started the processes."""
PATIENCE = 60.0
"""Seconds until all processes have said who they are."""


class Moment(NamedTuple):
    """When a blow falls, and on whom."""

    phase: str
    """What the process does that the blow waits for."""
    rank: int
    """Its number."""
    nth: int
    """Which step, or which checkpoint, since it was started."""
    share: float
    """How far it has come by then: of the time of a step, or of the things that it does with files."""
    victims: tuple[int, ...]
    """Who is killed, by number."""
    error: int = 0
    """In place of kills, how every call to the disk fails from then on."""


class Plan(NamedTuple):
    """What becomes of the processes that a torchrun starts."""

    run: str
    """The run's folder."""
    notes: str
    """A folder for what processes write down."""
    moments: tuple[Moment, ...]
    """One for each start."""
    events: dict[str, int]
    """What each process does with files in each phase, as "RANK PHASE"; empty where that is to be counted."""

    @classmethod
    def read(cls, path: Path) -> "Plan":
        run, notes, moments, events = json.loads(path.read_text("utf-8"))
        found = (Moment(*values[:4], tuple(values[4]), values[5]) for values in moments)
        return cls(run, notes, tuple(found), events)


class Struck(Disk):
    """This process: what it is doing, and what is done to it."""

    def __init__(self, plan: Plan, rank: int, start: int) -> None:
        self.plan, self.rank, self.start = plan, rank, start
        self.notes = Path(plan.notes)
        self.moment = plan.moments[start] if start < len(plan.moments) else None
        self.is_mine = self.moment is not None and self.moment.rank == rank
        self.phase, self.nth, self.number = TRAINING, dict.fromkeys(PHASES, 0), 0
        self.counts = dict.fromkeys(PHASES, 0)
        self.step_seconds = 0.0
        self.is_full = False
        (self.notes / f"pid-{start}-{rank}").write_text(str(os.getpid()))
        (self.notes / f"pid-{start}-{TORCHRUN}").write_text(str(os.getppid()))
        super().__init__(Path(plan.run), Blow(0))
        _wrap(steps, "write_part", self.during(WRITING))
        _wrap(steps, "finish", self.during(SEALING))
        _wrap(importlib.import_module("archwright.training.train"), "finish", self.during(ENDING))
        _wrap(importlib.import_module("archwright.training.session"), "train_step", self._step)

    def during(self, phase: str) -> Callable[..., Any]:
        """Return what does something as that phase."""

        def do(plain: Callable[..., Any], *given: Any, **named: Any) -> Any:
            self.phase, self.number = phase, 0
            self.nth[phase] += 1
            try:
                found = plain(*given, **named)
                if self._is_at(phase):  # there was less to do this time
                    self._fall()
                return found
            finally:
                self.phase, self.counts[phase] = TRAINING, max(self.number, self.counts[phase])
                if not self.plan.events:
                    counts = {f"{self.rank} {name}": count for name, count in self.counts.items()}
                    (self.notes / f"events-{self.rank}.json").write_text(json.dumps(counts))

        return do

    def _step(self, plain: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self.nth[TRAINING] += 1
        if self._is_at(TRAINING):
            assert self.moment
            timer = threading.Timer(self.moment.share * self.step_seconds, self._fall)
            timer.daemon = True
            timer.start()
        started = time.perf_counter()
        found = plain(*given, **named)
        self.step_seconds = time.perf_counter() - started
        return found

    def _is_at(self, phase: str) -> bool:
        moment = self.moment
        return bool(
            self.is_mine and moment and moment.phase == phase and moment.nth == self.nth[phase]
        )

    def meet(self, kind: str, path: object, half: Callable[[], object] | None = None) -> None:
        """Count what is done with files; where the blow falls on it, let that happen."""
        where = self._absolute(path)
        if not where.startswith(self.folder):
            return
        if self.is_full and kind not in REMOVALS:
            self._refuse(where)
        is_of_checkpoints = where.startswith(f"{self.folder}/checkpoints")
        if self.phase == TRAINING or is_of_checkpoints == (self.phase == ENDING):
            return  # the thread that trains goes on meanwhile, and writes records
        self.number += 1
        if not self._is_at(self.phase):
            return
        assert self.moment
        of = self.plan.events[f"{self.rank} {self.phase}"]
        if self.number == min(of, 1 + int(self.moment.share * of)):
            if half and (self.moment.error or self.rank in self.moment.victims):
                half()  # who goes on writes the whole alone
            self._fall()
            if self.is_full:
                self._refuse(where)

    def _refuse(self, where: str) -> None:
        assert self.moment
        raise OSError(self.moment.error, os.strerror(self.moment.error), where)

    def _fall(self) -> None:
        """Write down what this process is doing, and strike."""
        moment, self.is_mine = self.moment, False
        assert moment
        note = {"phase": self.phase, "victims": moment.victims, "error": moment.error}
        (self.notes / f"fell-{self.start}.json").write_text(json.dumps(note))
        self.is_full = moment.error in FULL
        pids = [self._pid(victim) for victim in moment.victims]
        for pid in sorted(pids, key=lambda pid: pid == os.getpid()):  # itself last
            os.kill(pid, signal.SIGKILL)

    def _pid(self, rank: int) -> int:
        file, end = self.notes / f"pid-{self.start}-{rank}", time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if file.exists() and (text := file.read_text()):
                return int(text)
            time.sleep(0.01)
        raise TimeoutError(file)


def _wrap(module: Any, name: str, around: Callable[..., Any]) -> None:
    """Let a function of a module be called by another one, which is given it first."""
    plain = getattr(module, name)
    setattr(module, name, lambda *given, **named: around(plain, *given, **named))


if __name__ == "__main__":
    plan = Plan.read(Path(sys.argv[1]))
    Struck(plan, int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
    sys.argv = ["archwright", *sys.argv[2:]]
    raise SystemExit(main())
