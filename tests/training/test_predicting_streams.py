"""What models with predicting streams are trained on, and what is reported of it."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archwright.data.inputs import Batch, Inputs
from archwright.machine.precision import Precision
from archwright.model import Decoder, build
from archwright.optim import build_optimizers
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import AdamW, RunSpec
from archwright.training.evaluation import evaluate
from archwright.training.step import train_step

SPEC = ModelSpec(dim=16, num_layers=1, vocab_size=64, context_length=12).override(
    "attention.num_heads=2", "predicting_streams=3"
)
FP32 = Precision("fp32", torch.device("cpu"))


@pytest.fixture
def model() -> Decoder:
    return build(SPEC, seed=3).double()


def batch(rows: int = 5) -> Batch:
    dice = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(0, 64, (2, rows, 12), generator=dice)
    for row in range(rows):
        targets[row, : 12 - 12 * row // (rows - 1)] = -100
    return Batch(Inputs(tokens), targets)


def by_hand(
    model: Decoder, rows: Batch, decay: float, smoothing: float, z_loss: float
) -> tuple[Tensor, list[float]]:
    """Return the training loss by torch's own functions, and each stream's likelihood."""
    out = model(rows.inputs.tokens)
    flat = [x.flatten(0, 1) for x in (out.logits, *out.further_logits)]
    targets = rows.targets.flatten()
    valid = targets != -100
    smoothed = [
        F.cross_entropy(x, targets, label_smoothing=smoothing)
        + z_loss * x[valid].logsumexp(-1).square().mean()
        for x in flat
    ]
    weights = torch.tensor([1, decay, decay**2]).double()
    total = (weights / weights.sum() * torch.stack(smoothed)).sum()
    return total, [F.cross_entropy(x, targets).item() for x in flat]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_a_step_follows_the_weighted_mean_of_all_streams(
    decay: float, chunked: bool, model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, other = batch(), build(SPEC, seed=3).double()
    total, nats = by_hand(other, rows, decay, 0.1, 0.01)
    total.backward()
    found: dict[str, Tensor] = {}

    def seen(self: torch.optim.Optimizer, *args: Any) -> None:
        found.update({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})

    monkeypatch.setattr(Precision, "step", seen)
    result = train_step(
        model,
        rows,
        build_optimizers(model, AdamW()),
        lr_scale=1.0,
        precision=FP32,
        max_grad_norm=None,
        z_loss=0.01,
        label_smoothing=0.1,
        grad_accum_steps=2,
        chunked=chunked,
        stream_decay=decay,
    )
    assert result.loss == pytest.approx(nats[0])
    assert result.second_loss == pytest.approx((nats[1] + nats[2]) / 2)
    for name, parameter in other.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-5, atol=1e-7)


class Windows:
    """A held-out text of one batch."""

    num_tokens = num_bytes = 60
    counts_answers = False
    defines_bits_per_byte = True

    def __iter__(self) -> Any:
        yield batch().map(lambda tensor: tensor.numpy())


def test_an_evaluation_says_what_the_first_stream_reaches_and_further_ones(model: Decoder) -> None:
    found = evaluate(model, Windows(), FP32)  # type: ignore[arg-type]
    _, nats = by_hand(model, batch(), 1.0, 0.0, 0.0)
    assert found.nats_per_token == pytest.approx(nats[0])
    assert found.perplexity == pytest.approx(math.exp(nats[0]))
    assert found.second_loss == pytest.approx((nats[1] + nats[2]) / 2)
    out, targets = model(batch().inputs.tokens), batch().targets
    right = (out.further_logits.argmax(-1) == targets).sum() / (2 * (targets != -100).sum())
    assert found.second_accuracy == pytest.approx(right.item())


def test_further_tokens_are_named_where_there_are_some() -> None:
    assert (RunSpec(model=SPEC).second_task, RunSpec(model=SPEC).second_cases) == (
        "further tokens",
        "further token",
    )
    assert RunSpec(model=SPEC.override("predicting_streams=1")).second_task == ""
