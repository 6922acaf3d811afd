"""Helpers of tests that train whole runs of a tiny model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import archwright
from archwright.machine import decide as machine_room
from archwright.machine.peaks import Peak
from archwright.runs import RunFolder
from archwright.spec.run_spec import RunSpec
from archwright.training import finalize as finalize_room
from archwright.training import program
from archwright.training import train as train_room
from archwright.training.session import Session
from tests.tiny import tiny_run

TIMES = {"seconds", "cpu_seconds", "tokens_per_second", "utilisation", "memory_bytes"}
"""What differs between any two runs."""


def train(run: RunSpec, out: Path) -> RunFolder:
    return archwright.train(run, out=out, quiet=True).folder


def timeless(folder: RunFolder, kind: str = "train") -> list[dict[str, Any]]:
    records = [record for record in folder.metrics() if record["kind"] == kind]
    return [{key: record[key] for key in record if key not in TIMES} for record in records]


def at_step(
    monkeypatch: pytest.MonkeyPatch, step: int, act: Callable[[], object]
) -> pytest.MonkeyPatch:
    """Do something once, in the middle of a step."""
    plain, done = Session.step, []

    def stepped(self: Session) -> Any:
        if self.standing.step == step and not done:
            done.append(step)
            act()
        return plain(self)

    monkeypatch.setattr(Session, "step", stepped)
    return monkeypatch


def run_of_twelve(text: Path) -> RunSpec:
    """A run of twelve steps with all that happens in between."""
    return tiny_run(
        text,
        "budget=12steps",
        "evaluate.every=5",
        "evaluate.max_tokens=100",
        "evaluate.final_max_tokens=200",
        "checkpoint.every=3",
        "model.embedding.dropout=0.1",
    )


@contextmanager
def apart(folder: Path) -> Iterator[pytest.MonkeyPatch]:
    """For fixtures of a module: a cache of their own in a folder, and `leave_out`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHWRIGHT_CACHE", str(folder / "cache"))
        leave_out(patch)
        yield patch


def leave_out(patch: pytest.MonkeyPatch) -> None:
    for room in (train_room, program, finalize_room):
        patch.setattr(room, "report", lambda folder: folder.report_file.touch())
    patch.setattr(finalize_room, "SAMPLE_TOKENS", 16)
    patch.setattr(machine_room, "peak_of", lambda *_: Peak(1e11, True))


class Died(BaseException):
    """Stands for the end of the process at this very place."""


def die(*_: object, **__: object) -> None:
    raise Died
