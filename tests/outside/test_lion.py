"""An optimizer and a schedule from outside the package do what their paper says, resume, and are compared."""

import math
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from archwright.cli import main
from archwright.plugins import load_parts_file
from archwright.runs import RunFolder
from archwright.training.train import resume, train
from tests.tiny import tiny_run, tiny_words, write_text
from tests.training.whole import Died, at_step, die, timeless

FILE = Path(__file__).with_name("lion.py")
ASKED = ("optimizer.kind=lion", "schedule.kind=one_minus_sqrt")


@pytest.mark.usefixtures("visitors")
def test_its_steps_are_those_of_algorithm_2() -> None:
    made: Any = runpy.run_path(str(FILE))["LionOptimizer"]
    dice = torch.Generator().manual_seed(0)
    w = torch.nn.Parameter(torch.randn(3, 4, generator=dice, dtype=torch.double))
    optimizer = made([{"params": [w], "lr": 0.1, "weight_decay": 0.3}], betas=(0.8, 0.95))
    expected, m = w.detach().clone(), torch.zeros_like(w.detach())
    for _ in range(5):
        g = torch.randn(3, 4, generator=dice, dtype=torch.double)
        c = 0.8 * m + 0.2 * g
        expected = expected - 0.1 * (c.sign() + 0.3 * expected)
        m = 0.95 * m + 0.05 * g
        w.grad = g
        optimizer.step()
    torch.testing.assert_close(w.detach(), expected, rtol=1e-12, atol=0)


@pytest.mark.slow
@pytest.mark.usefixtures("visitors")
def test_it_trains_from_the_command_line_and_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(Path("text.txt"), 100)
    few = ("budget=5steps", "schedule.warmup=1", "evaluate.final_max_tokens=50")
    parts = ("--parts", str(FILE))
    assert main([*tiny_words("text.txt", *ASKED, *few), *parts, "--quiet"]) == 0
    rates = [record["lr"] for record in timeless(RunFolder("runs/modern"))]
    falling = [3e-4 * (1 - math.sqrt((step - 1) / 4)) for step in range(1, 5)]
    assert rates == pytest.approx([1.5e-4, *falling])
    capsys.readouterr()
    for kind in ("lion", "one_minus_sqrt"):
        assert main(["list", "choices", kind, *parts]) == 0
        assert f": {kind}\n" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("visitors")
def test_it_learns_and_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_parts_file(FILE)
    text = write_text(tmp_path / "text.txt")
    few = ("budget=30steps", "checkpoint.every=4", "optimizer.lr=0.003", "evaluate.max_tokens=500")
    run = tiny_run(text, *ASKED, *few)
    whole = train(run, out=tmp_path / "whole", quiet=True).folder
    losses = [record["loss"] for record in timeless(whole)]
    assert max(losses[-5:]) < 0.8 * min(losses[:3])
    at_step(monkeypatch, 18, die)
    with pytest.raises(Died):
        train(run, out=tmp_path / "cut", quiet=True)
    cut = RunFolder(tmp_path / "cut")
    assert max(cut.checkpoints()) == 16
    resume(cut, quiet=True)
    assert timeless(cut) == timeless(whole)
    assert cut.model_file.read_bytes() == whole.model_file.read_bytes()
