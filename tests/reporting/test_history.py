"""What is read from a run folder."""

import math
from typing import Any

import numpy as np
import pytest

from archwright.reporting.history import read_history


def test_train_lines_become_columns(made: Any) -> None:
    lines = list(made.steps(5, evaluations=0))
    history = read_history(made.run(lines))
    train = [line for line in lines if line["kind"] == "train"]
    for column in ("step", "tokens", "seconds", "loss", "lr", "memory_bytes"):
        assert history.train[column].tolist() == [line[column] for line in train]


def test_what_is_missing_or_null_is_nan(made: Any) -> None:
    line = {"kind": "train", **made.at(1), "loss": None}
    evaluation = {"kind": "eval", **made.at(1), **made.evaluation(2.0), "nats_per_token": None}
    history = read_history(made.run([line, evaluation]))
    assert np.isnan(history.train["loss"]).all()
    assert np.isnan(history.train["grad_norm"]).all()
    assert math.isnan(history.evals[0]["nats_per_token"])


@pytest.mark.parametrize(
    ("names", "state"),
    [
        ([], "unfinished"),
        (["started"], "unfinished"),
        (["started", "loss_spike", "stopped"], "stopped"),
        (["started", "stopped", "resumed"], "unfinished"),
        (["started", "stopped", "resumed", "finished"], "finished"),
        (["started", "finished", "loss_spike"], "finished"),
    ],
)
def test_how_a_run_ended(made: Any, names: list[str], state: str) -> None:
    lines = [made.event(name, step) for step, name in enumerate(names)]
    assert read_history(made.run(lines)).state == state


def test_an_empty_run_folder_has_a_history(made: Any) -> None:
    history = read_history(made.run([], sample="", environment={}))
    assert history.num_steps == 0
    assert history.flops_per_token is None
    assert history.sample == ""
