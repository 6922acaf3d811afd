"""Transformer-XL's scores of distances beside their formula in loops."""

import math

import numpy as np
import pytest
import torch

from archwright.classic.parts.transformer_xl import TransformerXL
from archwright.classic.spec import transformer_xl as spec
from archwright.model import build
from archwright.spec import masks
from archwright.spec.model_spec import ModelSpec
from tests.parts.test_relative_positions import (
    DIM,
    GIVEN,
    HEAD_DIM,
    HEADS,
    LENGTH,
    SCALE,
    made,
    queries,
    view,
)


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
