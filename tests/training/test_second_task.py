"""Rows that are judged beside their tokens: the loss of both, in parts and in chunks, and what an evaluation says."""

import copy
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import archwright
from archwright.data.inputs import Batch, Inputs
from archwright.machine.precision import Precision
from archwright.model import build
from archwright.optim import build_optimizers
from archwright.spec.optimizers import AdamW
from archwright.spec.read import load, load_run
from archwright.training.step import train_step

SIZES = ("dim=16", "num_layers=2", "vocab_size=64", "context_length=12", "attention.num_heads=2")
PLAIN = (
    "feedforward.hidden_dim=24",
    "residual.dropout=0.0",
    "embedding.dropout=0.0",
    "attention.dropout=0.0",
)
FP32 = Precision("fp32", torch.device("cpu"))


def batch() -> Batch:
    dice = torch.Generator().manual_seed(1)
    tokens = torch.randint(64, (5, 12), generator=dice)
    targets = tokens.masked_fill(torch.rand(5, 12, generator=dice) < 0.7, -100)
    types = (torch.arange(12) > 5).long().expand(5, 12)
    real = torch.ones(5, 12, dtype=torch.bool)
    real[1, 9:], real[3, :2] = False, False
    given = Inputs(tokens, padding_mask=real, token_type_ids=types)
    return Batch(given, targets.masked_fill(~real, -100), torch.tensor([0, 1, 1, 0, 1]))


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_step_is_that_of_the_sum_of_both_means(chunked: bool, parts: int) -> None:
    model = build(load("bert-base").override(*SIZES, *PLAIN), seed=3).double()
    plain, given = copy.deepcopy(model), batch()
    optimizers = build_optimizers(model, AdamW(lr=0.01))
    result = train_step(
        model,
        given,
        optimizers,
        lr_scale=1.0,
        precision=FP32,
        grad_accum_steps=parts,
        chunked=chunked,
    )
    hidden = plain.hidden(**given.inputs.given())
    judged = plain.sequence_head(hidden[torch.arange(5), torch.tensor([0, 0, 0, 2, 0])])
    of_tokens = F.cross_entropy(plain.head(hidden).flatten(0, 1), given.targets.flatten())
    of_rows = F.cross_entropy(judged, given.sequence_targets)
    assert result.loss == pytest.approx(of_tokens.item(), rel=1e-9)
    assert result.second_loss == pytest.approx(of_rows.item(), rel=1e-9)
    (of_tokens + of_rows).backward()
    torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
    for optimizer in build_optimizers(plain, AdamW(lr=0.01)).values():
        optimizer.step()
    for (name, found), expected in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-8, msg=name)


@pytest.mark.slow
def test_a_run_records_both_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The sun rises, and the moon sets over the hills. " * 400)
    words = (
        f"data.text={text}",
        *("model.dim=32", "model.num_layers=2", "model.vocab_size=320", "model.context_length=32"),
        *("model.attention.num_heads=2", "model.feedforward.hidden_dim=48", "batch_size=4"),
        *("data.tokenizer.vocab_size=300", "budget=6steps", "machine.precision=fp32"),
    )
    run = load_run("bert-base").override(*words)
    made = archwright.train(run, out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "train"]
    assert len(steps) == 6
    assert all(0.1 < line["second_loss"] < 3 for line in steps)
    (last,) = [line for line in lines if line["kind"] == "eval"][-1:]
    assert 0.1 < last["second_loss"] < 3
    assert 0 <= last["token_accuracy"] <= 1
    assert 0 <= last["second_accuracy"] <= 1
    page = (tmp_path / "run/report.html").read_text()
    assert "Next sentence" in page
    assert "Rows right" in page
    assert made.spec.objective.second_task == "next sentence"
