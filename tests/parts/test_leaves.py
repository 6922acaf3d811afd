"""Leaves: formulas of kernels, which counters book in place of what they do."""

from typing import Any

import pytest
import torch
from torch import Tensor

from archwright.parts.kernels import KERNELS, ScoreMods
from archwright.parts.kernels.costs import visible_pairs
from archwright.parts.leaves import LeafCosts, is_watched, leaf, watched
from archwright.parts.masks import AttentionMask, pattern_of
from archwright.parts.token_layout import TokenLayout
from archwright.spec.masks import Causal, Full, Window

CPU = torch.device("cpu")


def doubled_costs(x: Tensor) -> LeafCosts:
    return LeafCosts(float(x.numel()), 2.0 * x.nbytes, torch.empty_like(x, device="meta"))


@leaf(doubled_costs)
def doubled(x: Tensor) -> Tensor:
    return 2 * x


def test_a_leaf_is_a_plain_call_until_it_is_watched() -> None:
    seen: list[LeafCosts] = []

    def watch(function: Any, formula: Any, args: Any, kwargs: Any) -> Tensor:
        seen.append(formula(*args, **kwargs))
        with watched(None):
            assert not is_watched()
            return function(*args, **kwargs)

    x = torch.ones(3)
    assert torch.equal(doubled(x), 2 * x)
    with watched(watch):
        assert is_watched()
        assert torch.equal(doubled(x), 2 * x)
    assert [costs.flops for costs in seen] == [3]


@pytest.mark.parametrize(
    ("mask", "pairs"), [(Causal(), 15), (Full(), 25), (Window(size=2), 9)], ids=str
)
def test_pairs_are_those_of_the_mask(mask: Any, pairs: int) -> None:
    assert visible_pairs(AttentionMask(pattern_of(mask, 1), TokenLayout(5, CPU))) == pairs


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_a_kernel_keeps_what_its_formula_says(kernel: str) -> None:
    """Bytes of the storages that autograd saves, with two query heads for each head of keys."""
    q, k, v = (torch.randn(2, 64, heads, 16, requires_grad=True) for heads in (4, 2, 2))
    view = AttentionMask(pattern_of(Causal(), 4), TokenLayout(64, CPU))
    mods = ScoreMods(0.25)
    costs: list[LeafCosts] = []
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage()._cdata] = x.untyped_storage().nbytes()
        return x

    def watch(function: Any, formula: Any, args: Any, kwargs: Any) -> Tensor:
        costs.append(formula(*args))
        with watched(None), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            return function(*args)

    with watched(watch):
        out = KERNELS[kernel].run(q, k, v, view, mods)
    assert costs[0].results.shape == out.shape  # type: ignore[union-attr]
    assert costs[0].flops == 2 * 2 * 4 * 32 * (64 * 65 / 2)
    found = sum(x.untyped_storage().nbytes() for x in costs[0].kept)
    assert found == pytest.approx(sum(kept.values()), rel=0.03)
