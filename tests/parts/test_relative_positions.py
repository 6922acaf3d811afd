"""Positions that are added to scores, beside their formulas in loops and beside published numbers."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from archwright.model import build
from archwright.parts.masks import MASKS, AttentionMask
from archwright.parts.positions import POSITIONS
from archwright.parts.positions.relative import ALiBi, T5Bias, TransformerXL, alibi_slopes
from archwright.parts.token_layout import token_layout
from archwright.spec import masks
from archwright.spec import positions as spec
from archwright.spec.model_spec import ModelSpec

DIM, HEADS, HEAD_DIM, LENGTH, SCALE = 10, 3, 4, 6, 0.3
GIVEN = torch.tensor([[0, 1, 2, 3, 4, 5], [9, 9, 2, 40, 7, 0]])
"""Positions of two rows, which need not count."""


def made(choice: spec.Position, heads: int = HEADS, two_way: bool = False) -> Any:
    """Return the part with random weights, in float64."""
    part = POSITIONS[type(choice)](choice, DIM, heads, HEAD_DIM, two_way=two_way)
    torch.manual_seed(0)
    for parameter in part.parameters():
        nn.init.normal_(parameter, std=1.5 / math.sqrt(DIM) if parameter.ndim == 2 else 0.3)
    return part.double()


def view(mask: masks.Mask = masks.Causal(), positions: Tensor = GIVEN) -> AttentionMask:  # noqa: B008
    return AttentionMask(
        MASKS[type(mask)](mask), token_layout(torch.zeros_like(positions), positions)
    )


def queries(heads: int = HEADS) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, LENGTH, heads, HEAD_DIM, dtype=torch.float64)


class TestALiBi:
    @pytest.mark.parametrize(
        ("heads", "slopes"),
        [
            (1, [2**-8]),
            (2, [2**-4, 2**-8]),
            (6, [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]),
            (8, [2.0**-k for k in range(1, 9)]),
            (12, [*[2.0**-k for k in range(1, 9)], 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
        ],
    )
    def test_slopes(self, heads: int, slopes: list[float]) -> None:
        assert alibi_slopes(heads).tolist() == pytest.approx(slopes, rel=1e-7)

    @pytest.mark.parametrize("heads", [3, 4, 12])
    def test_slopes_to_another_exponent(self, heads: int) -> None:
        """Twice the exponents: the squares of the paper's slopes."""
        squares = [slope**2 for slope in alibi_slopes(heads).tolist()]
        assert alibi_slopes(heads, 16).tolist() == pytest.approx(squares, rel=1e-7)
        part: ALiBi = made(spec.ALiBi(bias_max=16), heads=heads)
        assert part.slopes.tolist() == pytest.approx(squares, rel=1e-7)
        part.slopes.zero_()
        part.reset_parameters()
        assert part.slopes.tolist() == pytest.approx(squares, rel=1e-7)

    @pytest.mark.parametrize("scaled", [False, True])
    @pytest.mark.parametrize("mask", [masks.Causal(), masks.Full()], ids=lambda m: m.kind)
    def test_formula(self, scaled: bool, mask: masks.Mask) -> None:
        """Behind, scores fall with the distance; a mask that looks ahead has them fall on both sides."""
        part: ALiBi = made(spec.ALiBi(scaled=scaled), heads=6)
        q = queries(6)
        same, bias = part(q, view(mask), SCALE)
        found = bias.block(1, 5, 2, 6)
        slopes = [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]
        for b, h, i, j in np.ndindex(2, 6, 4, 4):
            distance = int(GIVEN[b, j + 2] - GIVEN[b, i + 1])
            if mask.kind == "full":
                distance = -abs(distance)
            expected = slopes[h] * distance * (SCALE if scaled else 1)
            assert found[b, h, i, j].item() == pytest.approx(expected, rel=1e-7)
        assert torch.equal(same, q)


DISTANCES = [0, 1, 7, 8, 15, 16, 20, 31, 32, 50, 64, 100, 127, 128, 5000]
DECODER = [0, 1, 7, 8, 15, 16, 17, 21, 21, 24, 26, 30, 31, 31, 31]
BEFORE = [0, 1, 7, 8, 9, 10, 10, 11, 12, 13, 14, 15, 15, 15, 15]
AFTER = [0, 17, 23, 24, 25, 26, 26, 27, 28, 29, 30, 31, 31, 31, 31]


def bucket(behind: int, number: int, most: int) -> int:
    """Return the bucket of a distance among `number`, by comparing whole numbers instead of logarithms.

    n is in the k-th logarithmic bucket or a later one if (n / m)^(number - m) >= (most / m)^k.
    """
    m = number // 2
    if behind < m:
        return behind
    steps = range(1, number - m)
    reached = [k for k in steps if behind ** (number - m) * m**k >= most**k * m ** (number - m)]
    return m + len(reached)


class TestT5:
    def test_published_buckets(self) -> None:
        """Of T5's own 32 buckets up to 128."""
        one, both = made(spec.T5Bias()), made(spec.T5Bias(), two_way=True)
        behind = -torch.tensor(DISTANCES)
        assert one.buckets(behind).tolist() == DECODER
        assert both.buckets(behind).tolist() == BEFORE
        assert both.buckets(-behind).tolist() == AFTER
        assert one.buckets(-behind).tolist() == [0] * len(DISTANCES)  # hidden in any case

    @pytest.mark.parametrize(("number", "most"), [(32, 128), (10, 37), (64, 1000), (6, 20)])
    def test_buckets_of_other_sizes(self, number: int, most: int) -> None:
        one = made(spec.T5Bias(num_buckets=number, max_distance=most))
        both = made(spec.T5Bias(num_buckets=number, max_distance=most), two_way=True)
        for n in range(1, 2 * most):
            assert one.buckets(torch.tensor(-n)).item() == bucket(n, number, most)
            half = bucket(n, number // 2, most)
            assert both.buckets(torch.tensor(-n)).item() == half
            assert both.buckets(torch.tensor(n)).item() == half + number // 2

    def test_the_bias_is_a_row_of_the_table(self) -> None:
        part: T5Bias = made(spec.T5Bias(num_buckets=8, max_distance=20))
        q = queries()
        same, bias = part(q, view(), SCALE)
        found, table = bias.block(0, 6, 0, 6), part.table.weight
        for b, h, i, j in np.ndindex(2, HEADS, 6, 6):
            distance = max(0, int(GIVEN[b, i] - GIVEN[b, j]))
            assert found[b, h, i, j].item() == table[bucket(distance, 8, 20), h].item()
        assert torch.equal(same, q)

    @pytest.mark.parametrize("shared", [True, False])
    def test_one_table_for_all_layers_or_one_for_each(self, shared: bool) -> None:
        small = ModelSpec(dim=16, num_layers=3, vocab_size=32, context_length=12).override(
            "position.kind=t5", f"position.shared={str(shared).lower()}", "attention.num_heads=2"
        )
        tables = [n for n, p in build(small).named_parameters() if p.shape == (32, 2)]
        assert len([name for name in tables if "table" in name]) == (1 if shared else 3)
        assert all(name.startswith("layers.") != shared for name in tables)


class TestTransformerXL:
    @pytest.mark.parametrize("mask", [masks.Causal(), masks.Full()], ids=lambda m: m.kind)
    def test_formula(self, mask: masks.Mask) -> None:
        """scale (q k + u k + q r + v r), where r is a map of the sines and cosines of q's position - k's."""
        part: TransformerXL = made(spec.TransformerXL(theta=50.0))
        q, k = queries(), queries().flip(1) + 0.5
        turned, bias = part(q, view(mask), SCALE)
        products = torch.einsum("bqhd,bkhd->bhqk", turned, k) * SCALE
        whole = products + bias.block(0, LENGTH, 0, LENGTH)
        np.testing.assert_allclose(
            whole.detach().numpy(), by_loops(part, q.numpy(), k.numpy()), rtol=1e-6, atol=1e-6
        )
        piece = bias.block(2, 5, 1, 4)
        torch.testing.assert_close(piece, bias.block(0, LENGTH, 0, LENGTH)[:, :, 2:5, 1:4])

    def test_every_layer_has_its_own(self) -> None:
        small = ModelSpec(dim=16, num_layers=2, vocab_size=32, context_length=12).override(
            "position.kind=transformer_xl", "attention.num_heads=2"
        )
        found = [n for n, _ in build(small).named_parameters() if "content_bias" in n]
        assert len(found) == 2


def by_loops(part: TransformerXL, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    matrix, u, v = (
        p.detach().numpy() for p in (part.distance.weight, part.content_bias, part.distance_bias)
    )
    whole = np.zeros((2, HEADS, LENGTH, LENGTH))
    for b, h, i, j in np.ndindex(*whole.shape):
        here = slice(h * HEAD_DIM, (h + 1) * HEAD_DIM)
        angles = [int(GIVEN[b, i] - GIVEN[b, j]) * 50.0 ** (-2 * n / DIM) for n in range(DIM // 2)]
        sines = np.array([*map(math.sin, angles), *map(math.cos, angles)])
        r = matrix[here] @ sines
        query, key = q[b, i, h], k[b, j, h]
        whole[b, h, i, j] = SCALE * (query @ key + u[here] @ key + query @ r + v[here] @ r)
    return whole
