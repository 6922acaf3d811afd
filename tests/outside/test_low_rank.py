"""A feed-forward from outside the package is counted and scaled down as it says itself."""

import runpy
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from archwright.model import build
from archwright.planning.cost import flops_per_token
from archwright.spec.model_spec import ModelSpec
from archwright.spec.scale_down import tiny

pytestmark = pytest.mark.usefixtures("visitors")


@pytest.fixture
def spec() -> ModelSpec:
    runpy.run_path(str(Path(__file__).parent / "low_rank.py"), run_name="low_rank")
    small = ModelSpec(dim=128, num_layers=2, vocab_size=64, context_length=24)
    return small.override("feedforward.kind=low_rank", "attention.mask.kind=full")


def test_its_flops_are_counted(spec: ModelSpec) -> None:
    model = build(spec).use_kernel("eager")
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(2, 12, dtype=torch.long))
    assert counter.get_total_flops() == pytest.approx(24 * flops_per_token(model, 12) / 3, rel=0.01)


def test_it_is_scaled_down(spec: ModelSpec) -> None:
    assert dict(tiny(spec).feedforward)["rank"] == 128  # at half the width
    assert build(tiny(spec))(torch.zeros(1, 5, dtype=torch.long)).logits.isfinite().all()
