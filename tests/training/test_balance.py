"""A selection bias that follows the load: what a step does to it, that loads even out, and that runs resume."""

import math
import signal
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from archwright.checkpoint import read_model
from archwright.data.inputs import Batch, Inputs
from archwright.machine.precision import Precision
from archwright.model import build
from archwright.optim import build_optimizers
from archwright.spec.model_spec import ModelSpec
from archwright.spec.optimizers import AdamW
from archwright.spec.run_spec import RunSpec
from archwright.training.step import train_step
from archwright.training.train import Stopped
from tests.training.whole import at_step, leave_out, timeless, train

RATE = 0.02
EXPERTS = (
    "feedforward.kind=experts",
    "feedforward.num_experts=4",
    "feedforward.expert.hidden_dim=16",
    "feedforward.routing.kind=sigmoid",
    "feedforward.balance_loss=0.0",
    f"feedforward.selection_bias_update_rate={RATE}",
)
SPEC = ModelSpec(dim=16, num_layers=2, vocab_size=64, context_length=12).override(
    "attention.num_heads=2", *EXPERTS
)


def batch(seed: int = 1) -> Batch:
    dice = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 64, (4, 13), generator=dice)
    return Batch(Inputs(tokens[:, :-1]), tokens[:, 1:])


def loads(model: nn.Module, rows: Batch) -> list[Tensor]:
    """Count what each layer's router chooses, by its own numbers."""
    counts: list[Tensor] = []

    def look(part: nn.Module, given: tuple[Tensor], out: Tensor) -> None:
        scores = torch.sigmoid(given[0].flatten(0, -2) @ part.router.weight.T)
        chosen = (scores + part.selection_bias).topk(2).indices
        counts.append(chosen.flatten().bincount(minlength=4))

    hooks = [layer.feedforward.register_forward_hook(look) for layer in model.layers]
    with torch.no_grad():
        model(rows.inputs.tokens)
    for hook in hooks:
        hook.remove()
    return counts


def step(model: nn.Module, rows: Batch, **settings: object) -> bool:
    optimizers = build_optimizers(model, AdamW(lr=1e-3))
    precision = Precision("fp32", torch.device("cpu"))
    return train_step(model, rows, optimizers, lr_scale=1.0, precision=precision, **settings).finite


@pytest.mark.parametrize("grad_accum_steps", [1, 3])
def test_it_moves_by_the_rate_towards_the_mean_load_of_the_whole_batch(
    grad_accum_steps: int,
) -> None:
    model = build(SPEC, seed=3)
    for number in range(3):
        counts = loads(model, batch(number))
        before = [layer.feedforward.selection_bias.clone() for layer in model.layers]
        assert step(model, batch(number), grad_accum_steps=grad_accum_steps)
        for layer, count, old in zip(model.layers, counts, before, strict=True):
            expected = old + RATE * torch.sign(count.sum() / 4 - count)
            torch.testing.assert_close(layer.feedforward.selection_bias, expected)
            assert layer.feedforward.load is None


def test_it_stays_where_nothing_was_updated_or_only_looked_at() -> None:
    model = build(SPEC, seed=3)
    model.eval()(batch().inputs.tokens)
    with torch.no_grad():
        model.train()(batch().inputs.tokens)
    assert all(layer.feedforward.load is None for layer in model.layers)
    model.head.weight.data[3, 3] = math.nan
    assert not step(model, batch())
    for layer in model.layers:
        assert layer.feedforward.load is None
        assert not layer.feedforward.selection_bias.any()


@pytest.mark.slow
def test_loads_even_out() -> None:
    """A router that sends all to two of four experts is brought to send each about as much."""
    excess = {}
    for rate in (0.0, RATE):
        words = (
            f"feedforward.selection_bias_update_rate={rate}",
            "feedforward.selection_bias=true",
            "num_layers=1",
        )
        model = build(SPEC.override(*words), seed=3)
        experts = model.layers[0].feedforward
        experts.selection_bias.copy_(torch.tensor([0.5, 0.5, 0.0, 0.0]))
        for number in range(60):
            step(model, batch(number))
        count = torch.stack([loads(model, batch(number))[0] for number in range(100, 110)]).sum(0)
        excess[rate] = (count.max() / count.double().mean()).item() - 1
    assert excess[0.0] > 0.7
    assert excess[RATE] < 0.2


@pytest.mark.slow
def test_a_resumed_run_has_the_same_bias(
    longer: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch)
    run = longer.override(*(f"model.{word}" for word in EXPERTS), "grad_accum_steps=2")
    plain = train(run, tmp_path / "plain")
    with monkeypatch.context() as patch:
        at_step(patch, 4, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Stopped):
            train(run, tmp_path / "run")
    resumed = train(run, tmp_path / "run")
    assert timeless(resumed) == timeless(plain)
    assert resumed.model_file.read_bytes() == plain.model_file.read_bytes()
    saved = read_model(plain.model_file)
    (name,) = (name for name in saved if name.endswith("selection_bias"))
    moved = saved[name] / RATE
    assert moved.any()
    torch.testing.assert_close(moved, moved.round(), rtol=0, atol=1e-3)
