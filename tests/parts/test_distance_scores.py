"""Scores of distances beside position encodings."""

import pytest
import torch

from archwright.model import build
from archwright.parts.context import Context
from archwright.spec.model_spec import ModelSpec


@pytest.mark.parametrize("position", ["learned", "t5", "alibi", "transformer_xl", "rope"])
def test_they_stand_beside_positions(position: str) -> None:
    """With numbers of zero they change nothing, and with others the score of each pair by the number of its bucket."""
    words = ("attention.num_heads=2", f"position.kind={position}")
    base = ModelSpec(dim=16, num_layers=1, vocab_size=20, context_length=12).override(*words)
    plain = build(base, seed=1).double().eval()
    model = build(base.override("attention.distance_scores.kind=buckets"), seed=1).double().eval()
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.normal_()
    model.load_state_dict(plain.state_dict(), strict=False)
    said = model.layers[0].attention.distance_scores.map
    tokens = torch.randint(20, (2, 12))
    with torch.no_grad():
        said.weight.zero_(), said.bias.zero_()
        torch.testing.assert_close(model(tokens).logits, plain(tokens).logits)
        said.bias.view(2, -1)[:, 0] = 1e6  # a token then sees itself alone
        attention = model.layers[0].attention
        x = torch.randn(2, 12, 16, dtype=torch.float64)
        found, alone = attention(x, Context.alone(x)), attention.out(attention.value(x))
        torch.testing.assert_close(found, alone, atol=1e-6, rtol=1e-6)
