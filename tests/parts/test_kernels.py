"""Every kernel beside attention written as loops in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from archwright.cpu import blocks
from archwright.parts.kernels import KERNELS, ScoreMods
from archwright.parts.masks import AttentionMask, Causal, MaskPattern, Window
from archwright.parts.token_layout import token_layout
from archwright.spec import masks as spec

HEADS = [(4, 4, 8), (6, 3, 5), (3, 1, 8), (2, 1, 11)]
"""Query heads, the key-value heads they share, and the width of values; that of keys is 8."""
LENGTHS = [1, 14]
"""Of texts in blocks of 4: within one, and across several with a rest."""

MASKS: dict[str, MaskPattern] = {
    "causal": Causal(spec.Causal()),
    "window 1": Window(spec.Window(size=1)),
    "window 3": Window(spec.Window(size=3)),
    "window 9": Window(spec.Window(size=9)),
}


def loops(q: Tensor, k: Tensor, v: Tensor, seen: np.ndarray, scale: float) -> np.ndarray:
    """Attention, one query at a time: softmax over the keys it sees, and their weighted values."""
    query, key, value = (x.detach().double().numpy() for x in (q, k, v))
    shared = query.shape[2] // key.shape[2]
    out = np.zeros((*query.shape[:3], value.shape[-1]))
    for b, t, h in np.ndindex(*query.shape[:3]):
        visible = np.flatnonzero(seen[b, t])
        scores = [scale * float(query[b, t, h] @ key[b, i, h // shared]) for i in visible]
        weights = np.exp(np.array(scores) - max(scores))
        weights /= weights.sum()
        for weight, i in zip(weights, visible, strict=True):
            out[b, t, h] += weight * value[b, i, h // shared]
    return out


def dense(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    """The same in one formula that autograd can follow."""
    shared = q.shape[2] // k.shape[2]
    k, v = (x[:, :, [h // shared for h in range(q.shape[2])]] for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    weights = scores.masked_fill(~seen[:, None], -torch.inf).exp()
    return torch.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdim=True), v)


def inputs(
    length: int, heads: int, kv: int, dtype: torch.dtype = torch.float64, *, values: int = 8
) -> list[Tensor]:
    torch.manual_seed(length + heads)
    shapes = [(2, length, h, width) for h, width in ((heads, 8), (kv, 8), (kv, values))]
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def views(length: int, narrowed: str, pattern: MaskPattern) -> AttentionMask:
    row = torch.arange(length)
    given: dict[str, Any] = {
        "": {},
        "documents": {"segment_ids": torch.stack([row // 3, row // 7])},
        "padding": {"padding_mask": torch.stack([row >= length // 3, row <= length // 2])},
    }[narrowed]
    return AttentionMask(pattern, token_layout(torch.zeros(2, length, dtype=torch.long), **given))


def seen_by(view: AttentionMask) -> Tensor:
    assert view.num_heads == 1
    return view.dense[:, 0].expand(2, -1, -1)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 4)
    monkeypatch.setattr(blocks, "ALIGNED", 2)


@pytest.mark.parametrize("narrowed", ["", "documents", "padding"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kernel", KERNELS)
class TestExact:
    @pytest.mark.sampled(fast=12)
    def test_values_are_those_of_the_loops(self, kernel: str, mask: str, narrowed: str) -> None:
        for length in LENGTHS:
            for heads, kv, values in HEADS:
                q, k, v = inputs(length, heads, kv, values=values)
                view = views(length, narrowed, MASKS[mask])
                found = KERNELS[kernel].run(q, k, v, view, ScoreMods(0.3)).detach().numpy()
                expected = loops(q, k, v, seen_by(view).numpy(), 0.3)
                np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)

    @pytest.mark.sampled(fast=12)
    def test_gradients_are_those_of_the_formula(
        self, kernel: str, mask: str, narrowed: str
    ) -> None:
        for length in LENGTHS:
            for heads, kv, values in HEADS:
                given = inputs(length, heads, kv, values=values)
                view = views(length, narrowed, MASKS[mask])
                into = torch.randn(2, length, heads, values, dtype=torch.float64)
                found = torch.autograd.grad(
                    KERNELS[kernel].run(*given, view, ScoreMods(0.3)), given, into
                )
                formula = dense(*given, seen_by(view), 0.3)
                expected = torch.autograd.grad(formula, given, into)
                for ours, theirs in zip(found, expected, strict=True):
                    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kernel", KERNELS)
class TestAll:
    def test_large_scores_do_not_overflow(self, kernel: str) -> None:
        q, k, v = (100 * x.detach().float() for x in inputs(9, 2, 2))
        found = KERNELS[kernel].run(q, k, v, views(9, "", MASKS["causal"]), ScoreMods(1.0))
        expected = loops(q, k, v, np.tril(np.ones((2, 9, 9))), 1.0)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-3)

    @pytest.mark.slow
    def test_bfloat16_is_as_near_as_it_can_be(self, kernel: str) -> None:
        """Inputs are exact in bfloat16, so that only the kernel's own rounding counts."""
        for mask in ("causal", "window 9"):
            q, k, v = inputs(150, 4, 2, torch.bfloat16)
            view = views(150, "", MASKS[mask])
            found = KERNELS[kernel].run(q, k, v, view, ScoreMods(0.3))
            assert found.dtype == torch.bfloat16
            error = found.detach().double().numpy() - loops(q, k, v, seen_by(view).numpy(), 0.3)
            assert np.abs(error).max() < 0.03
            assert np.sqrt((error**2).mean()) < 0.003

    def test_bfloat16_gradients(self, kernel: str) -> None:
        given = inputs(40, 4, 2, torch.bfloat16)
        exact = [x.detach().double().requires_grad_() for x in given]
        view = views(40, "", MASKS["causal"])
        torch.manual_seed(0)
        into = torch.randn(given[0].shape).bfloat16()
        found = torch.autograd.grad(KERNELS[kernel].run(*given, view, ScoreMods(0.3)), given, into)
        formula = dense(*exact, seen_by(view), 0.3)
        for ours, theirs in zip(
            found, torch.autograd.grad(formula, exact, into.double()), strict=True
        ):
            assert ours.dtype == torch.bfloat16
            assert (ours.double() - theirs).norm() < 0.015 * theirs.norm()

    def test_dropout_keeps_the_mean_and_drops_its_share(self, kernel: str) -> None:
        """With all scores 0, a query's output is the mean of the kept values over 1 - p."""
        torch.manual_seed(0)
        length, p = 64, 0.25
        zero, one = torch.zeros(200, length, 1, 4), torch.ones(200, length, 1, 4)
        view = AttentionMask(
            MASKS["causal"], token_layout(torch.zeros(200, length, dtype=torch.long))
        )
        out = KERNELS[kernel].run(zero, zero, one, view, ScoreMods(1.0, p))
        kept = out * torch.arange(1, length + 1)[:, None, None] * (1 - p)
        torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-3)  # whole numbers of keys
        assert out.mean().item() == pytest.approx(1, abs=0.01)
        assert kept[:, -1].mean().item() == pytest.approx(length * (1 - p), rel=0.02)
        assert kept[:, -1, 0, 0].var().item() == pytest.approx(length * p * (1 - p), rel=0.3)

    @pytest.mark.slow
    def test_dropout_has_the_gradient_of_what_it_kept(self, kernel: str) -> None:
        given = [x.detach()[..., :2].requires_grad_() for x in inputs(6, 2, 1)]
        view = views(6, "padding", MASKS["causal"])

        def call(*given: Tensor) -> Tensor:
            torch.manual_seed(3)
            return KERNELS[kernel].run(*given, view, ScoreMods(0.3, 0.4))

        assert not torch.allclose(call(*given), KERNELS[kernel].run(*given, view, ScoreMods(0.3)))
        assert torch.autograd.gradcheck(call, given)

    def test_inputs_may_lie_in_pieces(self, kernel: str) -> None:
        given = inputs(9, 4, 2)
        apart = [x.detach().permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2) for x in given]
        view = views(9, "", MASKS["causal"])
        found, expected = (KERNELS[kernel].run(*xs, view, ScoreMods(0.3)) for xs in (apart, given))
        torch.testing.assert_close(found, expected)

    def test_inputs_are_left_alone(self, kernel: str) -> None:
        given = [x.detach() for x in inputs(9, 4, 2)]
        before = [x.clone() for x in given]
        KERNELS[kernel].run(*given, views(9, "documents", MASKS["causal"]), ScoreMods(0.3, 0.1))
        assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


def test_blocks_of_the_real_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    q, k, v = inputs(300, 4, 2)
    for narrowed in ("", "documents", "padding"):
        for mask in ("causal", "window 9"):
            view = views(300, narrowed, MASKS[mask])
            found = KERNELS["blockwise"].run(q, k, v, view, ScoreMods(0.3))
            torch.testing.assert_close(found, dense(q, k, v, seen_by(view), 0.3))


def test_no_block_looks_where_a_mask_hides_all() -> None:
    """Keys that are no numbers reach no query that is a block and a window away from them."""
    q, k, v = (x.detach() for x in inputs(40, 2, 1))
    k[:, :16], v[:, :16] = torch.nan, torch.nan
    view = views(40, "", Window(spec.Window(size=4)))
    out = KERNELS["blockwise"].run(q, k, v, view, ScoreMods(0.3))
    assert out[:, 20:].isfinite().all()


def test_second_gradients_are_refused_not_wrong() -> None:
    given = inputs(5, 2, 2)
    out = KERNELS["blockwise"].run(*given, views(5, "", MASKS["causal"]), ScoreMods(0.3))
    (first,) = torch.autograd.grad(out.square().sum(), given[0], create_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        first.sum().backward()
