"""The end of a run, done in little on the way, tells how long it takes and changes nothing."""

from pathlib import Path
from typing import Any

import pytest

from archwright.runs import RunFolder
from archwright.training import train as train_room
from archwright.training.data import Material
from archwright.training.finalize import rehearse
from archwright.training.loop import Loop
from tests.training.whole import at_step, leave_out, run_of_twelve, timeless, train


@pytest.mark.slow
def test_a_rehearsal_leaves_the_run_as_it_is(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout among it, whose random numbers go on."""
    leave_out(monkeypatch)
    plain = train(run_of_twelve(text), tmp_path / "plain")
    measured: list[dict[str, float]] = []
    new_loop = train_room.new_loop

    def rehearsing(
        folder: RunFolder, session: Any, decisions: Any, material: Material, *more: Any
    ) -> Loop:
        loop = new_loop(folder, session, decisions, material, *more)
        at_step(monkeypatch, 6, lambda: measured.append(rehearse(loop, folder, material, 1000.0)))
        return loop

    monkeypatch.setattr(train_room, "new_loop", rehearsing)
    folder = train(run_of_twelve(text), tmp_path / "rehearsed")
    assert measured[0].keys() == {"evaluation", "baselines", "sample", "page"}
    assert all(seconds > 0 for seconds in measured[0].values())
    for kind in ("train", "eval", "baseline"):
        assert timeless(folder, kind) == timeless(plain, kind)
    assert folder.model_file.read_bytes() == plain.model_file.read_bytes()
    assert folder.samples() == plain.samples()
