"""Soft-caps, biases and sinks over every mask and kernel, beside attention written as loops in float64."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from archwright.classic.spec import big_bird, longformer
from archwright.cpu import blocks
from archwright.parts.kernels import KERNELS, ScoreMods
from archwright.parts.kernels.flex import block_mask
from archwright.parts.kernels.scores import ElementwiseBias
from archwright.parts.masks import MASKS, AttentionMask, MaskPattern, pattern_of
from archwright.parts.token_layout import TokenLayout, token_layout
from archwright.spec import masks as spec

LENGTH, HEADS, KV, HEAD_DIM, SCALE, CAP = 13, 4, 2, 8, 0.7, 1.3
"""A text in blocks of 4, with a rest."""
NEAR = 5
"""Rows of the table of biases."""
CHOICES: dict[str, spec.Mask] = {
    choice.kind: choice
    for choice in (
        spec.Causal(),
        spec.Full(),
        spec.Prefix(size=4),
        spec.Window(size=3),
        spec.SymmetricWindow(radius=2),
        spec.DilatedWindow(size=3, dilation=2, dilated_heads=2),
        longformer.Longformer(radius=2, dilation=2, dilated_heads=1, num_global=2),
        spec.Chunked(size=5),
        spec.SegmentMemory(size=4, memory=3),
        spec.WindowGlobal(size=3, num_global=2),
        spec.Strided(stride=3),
        spec.Fixed(stride=4, num_summary=2),
        spec.BlockSparse(block_size=2, local_blocks=1, stride=3),
        spec.BlockLocal(block_size=3, shift=1, num_global=2),
    )
}
PARTS = [{"softcap"}, {"bias"}, {"sinks"}, {"softcap", "bias"}, {"softcap", "bias", "sinks"}]
ROW = torch.arange(LENGTH)
NARROWED: dict[str, dict[str, Tensor]] = {
    "": {},
    "documents": {"segment_ids": torch.stack([ROW // 5, ROW // 9])},
    "padding": {"padding_mask": torch.stack([ROW >= 4, ROW <= 6])},
    "both": {
        "segment_ids": torch.stack([ROW // 5, ROW // 9]),
        "padding_mask": torch.stack([ROW >= 2, ROW <= 10]),
    },
}


def pattern(choice: spec.Mask) -> MaskPattern:
    return pattern_of(choice, HEADS)


class Case:
    """Random inputs of a kernel: queries, keys, values, a table of biases and sinks, and what is seen."""

    def __init__(self, mask: str, narrowed: str) -> None:
        torch.manual_seed(len(mask) + len(narrowed))
        shapes = [(2, LENGTH, heads, HEAD_DIM) for heads in (HEADS, KV, KV)]
        shapes += [(NEAR, HEADS), (HEADS,)]
        self.given = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
        self.where: TokenLayout = token_layout(
            torch.zeros(2, LENGTH, dtype=torch.long), **NARROWED[narrowed]
        )
        self.view = AttentionMask(pattern(CHOICES[mask]), self.where)

    def by_kernel(
        self, kernel: str, parts: set[str], by_distance: bool = False, dropout: float = 0.0
    ) -> Tensor:
        q, k, v, table, sinks = self.given

        def value(head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return table[(query - key) % NEAR, head]

        positions = self.where.position_ids_or_range()
        bias = ElementwiseBias(value, HEADS, positions, positions, by_distance=by_distance)
        scores = ScoreMods(
            SCALE,
            dropout,
            softcap=CAP if "softcap" in parts else None,
            bias=bias if "bias" in parts else None,
            sinks=sinks if "sinks" in parts else None,
        )
        view = replace(self.view)  # without what an earlier call has kept
        return KERNELS[kernel].run(q, k, v, view, scores)

    def of_columns(self, first: int, stop: int, kernel: str, parts: set[str], near: bool) -> Tensor:
        """Return what a kernel makes of the queries of some columns, which see the keys of all."""
        q, k, v, table, sinks = self.given
        view = self.view.of_columns(first, stop)
        at, keys = (place.position_ids_or_range() for place in (view.layout, view.keys_at))

        def value(head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return table[(query - key) % NEAR, head]

        bias = ElementwiseBias(value, HEADS, at, keys, by_distance=near)
        scores = ScoreMods(
            SCALE,
            softcap=CAP if "softcap" in parts else None,
            bias=bias if "bias" in parts else None,
            sinks=sinks if "sinks" in parts else None,
        )
        return KERNELS[kernel].run(q[:, first:stop], k, v, view, scores)

    def by_loops(self, parts: set[str]) -> np.ndarray:
        q, k, v, table, sinks = (x.detach().numpy() for x in self.given)
        seen = self.view.dense.expand(2, HEADS, -1, -1).numpy()
        positions = self.where.position_ids_or_range().expand(2, -1).numpy()
        out = np.zeros(q.shape)
        for b, t, h in np.ndindex(2, LENGTH, HEADS):
            g, total = h // (HEADS // KV), 0.0
            if "sinks" in parts:
                total += math.exp(sinks[h])
            for i in np.flatnonzero(seen[b, h, t]):
                score = SCALE * float(q[b, t, h] @ k[b, i, g])
                if "softcap" in parts:
                    score = CAP * math.tanh(score / CAP)
                if "bias" in parts:
                    score += table[(positions[b, t] - positions[b, i]) % NEAR, h]
                total += math.exp(score)
                out[b, t, h] += math.exp(score) * v[b, i, g]
            out[b, t, h] /= total
        return out


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 4)
    monkeypatch.setattr(blocks, "ALIGNED", 2)


def test_all_masks_are_here() -> None:
    assert {type(choice) for choice in CHOICES.values()} == {
        mask for mask in MASKS if mask.__module__.startswith("archwright.")
    } - {big_bird.BigBird}  # by which the end of a text counts: tests/parts/test_masks.py


@pytest.mark.sampled(fast=3)
@pytest.mark.parametrize("narrowed", NARROWED)
@pytest.mark.parametrize("mask", CHOICES)
def test_values(mask: str, narrowed: str) -> None:
    case = Case(mask, narrowed)
    for parts in [set(), *PARTS]:
        expected = case.by_loops(parts)
        for kernel in KERNELS:
            found = case.by_kernel(kernel, parts).numpy()
            np.testing.assert_allclose(
                found, expected, rtol=1e-10, atol=1e-11, err_msg=f"{kernel} {sorted(parts)}"
            )
        if "bias" in parts:
            found = case.by_kernel("blockwise", parts, by_distance=True).numpy()
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.sampled(fast=3)
@pytest.mark.parametrize("narrowed", NARROWED)
@pytest.mark.parametrize("mask", CHOICES)
def test_some_queries_among_all_keys(mask: str, narrowed: str) -> None:
    case = Case(mask, narrowed)
    for parts in [set(), *PARTS]:
        expected = case.by_loops(parts)
        for first, stop in ((0, 6), (6, LENGTH)):
            for kernel, near in [*((k, False) for k in KERNELS), ("blockwise", True)]:
                found = case.of_columns(first, stop, kernel, parts, near).numpy()
                np.testing.assert_allclose(
                    found, expected[:, first:stop], rtol=1e-10, atol=1e-11, err_msg=kernel
                )


@pytest.mark.sampled(fast=3)
@pytest.mark.parametrize("narrowed", NARROWED)
@pytest.mark.parametrize("mask", CHOICES)
def test_gradients(mask: str, narrowed: str) -> None:
    """Along a random line through all inputs, beside the slope of the loops."""
    case = Case(mask, narrowed)
    start = [x.clone() for x in case.given]
    line = [torch.randn_like(x) for x in start]
    into = torch.randn_like(start[0])
    for parts in PARTS:
        ends = []
        for step in (1e-6, -1e-6):
            case.given = [x + step * d for x, d in zip(start, line, strict=True)]
            ends.append((case.by_loops(parts) * into.numpy()).sum())
        expected = (ends[0] - ends[1]) / 2e-6
        for kernel, by_distance in [
            *((k, False) for k in KERNELS if k != "flex"),
            ("blockwise", True),
        ]:
            case.given = [x.clone().requires_grad_() for x in start]
            out = case.by_kernel(kernel, parts, by_distance)
            grads = torch.autograd.grad(out, case.given, into, allow_unused=True)
            pairs = zip(grads, line, strict=True)
            slope = sum((g * d).sum().item() for g, d in pairs if g is not None)
            assert slope == pytest.approx(expected, rel=1e-6, abs=1e-6), (kernel, parts)
            unused = [g is None for g in grads]
            assert unused == [False, False, False, "bias" not in parts, "sinks" not in parts]


@pytest.mark.parametrize("parts", [{"softcap"}, {"bias"}, {"sinks"}, {"softcap", "bias", "sinks"}])
def test_bfloat16_gradients(parts: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are exact in bfloat16, so that only the kernel's own rounding counts."""
    monkeypatch.undo()  # blocks of the real size
    case = Case("causal", "documents")
    exact = [x.bfloat16().double().requires_grad_() for x in case.given]
    into = torch.randn_like(exact[0]).bfloat16()
    case.given = exact
    reference = case.by_kernel("eager", parts)
    expected = torch.autograd.grad(reference, exact, into.double(), allow_unused=True)
    case.given = [x.detach().bfloat16().requires_grad_() for x in exact]
    found = case.by_kernel("blockwise", parts, by_distance=True)
    grads = torch.autograd.grad(found, case.given, into, allow_unused=True)
    for ours, theirs in zip(grads, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours.dtype == torch.bfloat16
            assert (ours.double() - theirs).norm() < 0.02 * theirs.norm()


def test_dropout_has_the_gradient_of_what_it_kept_under_caps_biases_and_sinks() -> None:
    case = Case("causal", "documents")
    start = [x.clone() for x in case.given]
    parts = {"softcap", "bias", "sinks"}

    def call(*given: Tensor) -> Tensor:
        torch.manual_seed(3)
        case.given = list(given)
        return case.by_kernel("blockwise", parts, by_distance=True, dropout=0.4)

    assert not torch.allclose(call(*start), case.by_kernel("blockwise", parts, by_distance=True))
    assert torch.autograd.gradcheck(call, [x.requires_grad_() for x in start], fast_mode=True)


@pytest.mark.parametrize("narrowed", [False, True])
@pytest.mark.parametrize("choice", list(CHOICES.values()), ids=lambda c: c.kind)
def test_flex_blocks_are_where_the_mask_shows_something(choice: Any, narrowed: bool) -> None:
    """FlexAttention's blocks of 128 x 128: skipped where all is hidden, and nowhere else."""
    length = 400
    ids = (torch.arange(length) >= 150).long()[None] if narrowed else None
    view = AttentionMask(pattern(choice), token_layout(torch.zeros(1, length).long(), None, ids))
    found = block_mask(view).to_dense()[0].bool()
    assert len(found) == view.num_heads
    padded = torch.zeros(len(found), 512, 512, dtype=torch.bool)
    padded[:, :length, :length] = view.dense[0]
    expected = padded.unflatten(1, (4, 128)).unflatten(-1, (4, 128)).any(2).any(-1)
    assert torch.equal(found, expected)


def test_scores_are_as_wide_as_float32_whatever_the_products() -> None:
    """Of products in bfloat16 nothing more is rounded: not after the scale, the cap, the bias or the softmax."""
    dice = torch.Generator().manual_seed(0)
    products = (3 * torch.randn(2, HEADS, 5, 7, generator=dice)).bfloat16()
    bias = torch.randn(HEADS, 5, 7, generator=dice)
    found = ScoreMods(SCALE, softcap=CAP, sinks=torch.zeros(HEADS)).weights(products, None, bias)
    scores = CAP * torch.tanh(products.double() * SCALE / CAP) + bias.double()
    expected = scores.exp() / (scores.exp().sum(-1, keepdim=True) + 1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
