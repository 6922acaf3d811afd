"""Whole runs that log elsewhere, too, interrupted on the way."""

import csv
import sys
from pathlib import Path

import pytest

from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec
from tests.fake_wandb import FakeWandb
from tests.training.whole import Died, at_step, die, leave_out, timeless, train

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out(monkeypatch)


@pytest.mark.release
def test_a_killed_run_has_no_row_twice(
    longer: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill is two steps behind the last checkpoint, so two steps are trained twice."""
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    logged = longer.override("loggers=csv,wandb")
    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, 8, die)
        with pytest.raises(Died):
            train(logged, tmp_path / "run")
    folder = train(logged, tmp_path / "run")
    losses = [(r["step"], r["loss"]) for r in timeless(folder)]
    assert [step for step, _ in losses] == list(range(1, 13))
    sent = [(row["step"], row["train/loss"]) for row in wandb.rows if "train/loss" in row]
    assert sent == losses
    evaluated = [row["step"] for row in wandb.rows if "held_out/perplexity" in row]
    assert evaluated == [5, 10, 12]
    with (folder.path / "csv" / "train.csv").open(newline="") as file:
        rows = [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(file)]
    assert rows == losses
    assert len({start["id"] for start in wandb.started}) == 1


def test_loggers_change_no_number(longer: RunSpec, tmp_path: Path) -> None:
    plain = train(longer, tmp_path / "plain")
    logged = train(longer.override("loggers=csv"), tmp_path / "logged")
    assert timeless(logged) == timeless(plain)
    assert logged.model_file.read_bytes() == plain.model_file.read_bytes()


def test_a_library_that_is_missing_is_said_before_anything_is_made(
    longer: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install 'archwright\[wandb\]'"):
        train(longer.override("loggers=wandb"), tmp_path / "run")
    assert not RunFolder(tmp_path / "run").exists
