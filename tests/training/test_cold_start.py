"""What loads slowly and is not needed is not loaded before a run's first step."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from archwright.runs import RunFolder

TRAIN = """
import sys
import archwright as aw
from archwright.training.loop import Loop

step = Loop._step

def first_step(self, *given):
    step(self, *given)
    wanted = {"torch._dynamo", "sympy", "plotly", "jinja2", "transformers", "torchao"}
    print("loaded:", *sorted(wanted & sys.modules.keys()), file=sys.stderr)
    sys.exit()

Loop._step = first_step
aw.train("modern", *sys.argv[1:], out="run", quiet=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_no_compiler_and_nothing_that_draws(tmp_path: Path, optimizer: str) -> None:
    (tmp_path / "text.txt").write_text("Something to train on, again and again.\n" * 200, "utf-8")
    values = ["data.text=text.txt", "data.tokenizer.kind=bytes", "model.dim=16", "batch_size=2"]
    values += ["model.num_layers=1", "model.context_length=16", "budget=1s"]
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, *values, f"optimizer.kind={optimizer}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stderr.splitlines()[-1] == "loaded:", done.stderr


LATE = """
import sys, time

time.sleep(2)
from archwright.cli import main

main()
"""


@pytest.mark.slow
def test_a_budget_in_time_begins_with_the_process(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Something to train on, again and again.\n" * 200, "utf-8")
    (tmp_path / "late.py").write_text(LATE, "utf-8")
    values = ["data.text=text.txt", "data.tokenizer.kind=bytes", "model.dim=16", "batch_size=2"]
    values += ["model.num_layers=1", "model.context_length=16", "budget=1s", "--quiet"]
    command = [sys.executable, "late.py", "train", "modern", *values, "--out", "run"]
    subprocess.run(command, cwd=tmp_path, check=True)
    spent = RunFolder(tmp_path / "run").environment()["time_budget"]["spent"]
    assert spent > 2 or not hasattr(time, "CLOCK_BOOTTIME")
