"""The shapes that public signatures state are checked in tests; here it is checked that they are."""

import jaxtyping
import pytest
import torch

from archwright.model import build
from archwright.parts.norms import LayerNorm
from archwright.spec import norms as spec
from archwright.spec.model_spec import ModelSpec


def test_a_wrong_dtype_is_caught() -> None:
    with pytest.raises(jaxtyping.TypeCheckError, match="Float"):
        LayerNorm(spec.LayerNorm(), 8)(torch.arange(8))


def test_a_wrong_shape_is_caught() -> None:
    model = build(ModelSpec(dim=16, num_layers=1, vocab_size=64), device="meta")
    tokens = torch.zeros(2, 5, dtype=torch.long, device="meta")
    with pytest.raises(jaxtyping.TypeCheckError, match="padding_mask"):
        model(tokens, padding_mask=torch.ones(2, 4, dtype=torch.bool, device="meta"))
