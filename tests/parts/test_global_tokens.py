"""Learned vectors before texts, beside the text with them written out by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from archwright.model import build
from archwright.model.decoder import Decoder
from archwright.parts.context import Context
from archwright.parts.global_tokens import GlobalTokens
from archwright.parts.token_layout import token_layout
from archwright.planning.cost import forward_flops
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec

NUMBER, LENGTH, DIM = 2, 7, 3
IDS = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 2, 2, 2, 2]])
REAL = torch.tensor([[1, 1, 1, 0, 1, 1, 1], [1, 1, 0, 1, 1, 1, 0]]).bool()
GIVEN: dict[str, dict[str, Tensor]] = {
    "nothing": {},
    "padding": {"padding_mask": torch.arange(LENGTH)[None] >= torch.tensor([[3], [0]])},
    "positions": {"position_ids": torch.arange(LENGTH) * 2},
    "documents": {"segment_ids": IDS},
    "all": {"segment_ids": IDS, "padding_mask": REAL, "position_ids": IDS * 10 + 3},
}


def placed(given: dict[str, Tensor]) -> tuple[GlobalTokens, Tensor, Tensor, Context, Tensor]:
    torch.manual_seed(0)
    part, x = GlobalTokens(NUMBER, DIM), torch.randn(2, LENGTH, DIM)
    torch.nn.init.normal_(part.weight)
    layout = token_layout(torch.zeros(2, LENGTH, dtype=torch.long), **given)
    return part, x, *part.before(x, Context(layout, 2))


@pytest.mark.parametrize("given", GIVEN)
def test_each_document_begins_with_them(given: str) -> None:
    part, x, longer, context, columns = placed(GIVEN[given])
    at = context.layout
    assert longer.shape == (2, at.length, DIM)
    for row in range(2):
        ids = GIVEN[given].get("segment_ids", torch.zeros(2, LENGTH).long())[row].tolist()
        real = GIVEN[given].get("padding_mask", torch.ones(2, LENGTH))[row].bool().tolist()
        positions = GIVEN[given].get("position_ids")
        expected: list[tuple[Tensor, int, int, bool]] = []
        for t, document in enumerate(ids):
            first = ids.index(document)
            if t == first:
                expected += [(part.weight[g], g, document, True) for g in range(NUMBER)]
            assert columns[row, t] == len(expected)
            place = NUMBER + sum(real[first:t])
            expected.append((x[row, t], place, document, real[t]))
            position = place if positions is None else NUMBER + int(positions.expand(2, -1)[row, t])
            found = at.position_ids_or_range().expand(2, -1)[row, len(expected) - 1]
            assert found == position
        for column, (vector, place, document, is_real) in enumerate(expected):
            torch.testing.assert_close(longer[row, column], vector)
            assert at.padding_mask is None or bool(at.padding_mask[row, column]) == is_real
            assert at.segment_ids is None or at.segment_ids[row, column] == document
            assert not is_real or at.index_or_range().expand(2, -1)[row, column] == place
        assert at.padding_mask is None or not at.padding_mask[row, len(expected) :].any()


SPEC = ModelSpec(dim=16, num_layers=2, vocab_size=32, context_length=12).override(
    "attention.num_heads=2", "attention.mask.kind=full", "global_tokens=3", "position.kind=learned"
)


def model(*changes: str, seed: int = 0) -> Decoder:
    built = build(SPEC.override(*changes), seed=seed).double()
    torch.manual_seed(seed)
    for parameter in built.parameters():
        parameter.data.normal_()
    return built.eval()


@pytest.mark.parametrize("own_norm", [False, True])
def test_layers_read_them_before_the_text_and_the_head_does_not(own_norm: bool) -> None:
    """The stack's loop, written out: positions are added to the text alone."""
    built = model(f"residual.global_norm={str(own_norm).lower()}")
    tokens = torch.arange(5)[None]
    x = built.embedding(tokens) + built.position(token_layout(tokens))  # type: ignore[misc]
    x = torch.cat((built.global_tokens.weight[None], x), 1)  # type: ignore[union-attr]
    for layer in built.stack:
        h = layer.residual.norms["attention"](x)  # type: ignore[index, union-attr]
        if own_norm:
            h = torch.cat((layer.residual.global_norm(x[:, :3]), h[:, 3:]), 1)  # type: ignore[operator]
        x = x + layer.branch("attention")(h)
        x = x + layer.branch("feedforward")(layer.residual.norms["feedforward"](x))  # type: ignore[index, union-attr]
    torch.testing.assert_close(built(tokens).logits, built.head(built.norm(x[:, 3:])))


def test_nothing_of_them_is_kept() -> None:
    built = model("attention.mask.kind=causal")
    assert not built.can_cache
    assert not built.can_generate_indefinitely
    with pytest.raises(UserError, match="global_tokens: found 3, of which a cache keeps nothing"):
        built.new_cache()


def test_each_layer_computes_them_with_every_text() -> None:
    """A text of 8 costs the layers what one of 11 does, and the head what one of 8 does."""
    found, longer = forward_flops(model(), 8), forward_flops(model("global_tokens=0"), 11)
    plain: dict[str, Any] = forward_flops(model("global_tokens=0"), 8)
    for part, flops in found.items():
        expected = longer[part] * 11 / 8 if part.startswith("layers.") else plain[part]
        assert flops == pytest.approx(expected), part
