"""Timing a little of the end of a run changes nothing."""

from pathlib import Path
from typing import Any

import pytest

from archwright.runs import RunFolder
from archwright.training import program
from archwright.training.data import Material
from archwright.training.finalize import time_end
from archwright.training.loop import Loop
from archwright.training.session import Session
from tests.training.whole import at_step, leave_out, run_of_twelve, timeless, train


@pytest.mark.slow
def test_timing_leaves_the_run_as_it_is(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout among it, whose random numbers go on."""
    leave_out(monkeypatch)
    plain = train(run_of_twelve(text), tmp_path / "plain")
    measured: list[tuple[float, float]] = []

    def timing(session: Session, folder: RunFolder, material: Material, **more: Any) -> Loop:
        at_step(monkeypatch, 6, lambda: measured.append(time_end(session, folder, material)))
        return Loop(session, folder, material, **more)

    monkeypatch.setattr(program, "Loop", timing)
    folder = train(run_of_twelve(text), tmp_path / "timed")
    assert all(seconds > 0 for seconds in measured[0])
    assert not folder.timed_file.exists()
    for kind in ("train", "eval", "baseline"):
        assert timeless(folder, kind) == timeless(plain, kind)
    assert folder.model_file.read_bytes() == plain.model_file.read_bytes()
    assert folder.samples() == plain.samples()
