"""A layer by itself is the layer of the model."""

import pytest
import torch

from archwright.model import build, build_layer
from archwright.parts.context import Context
from archwright.parts.token_layout import TokenLayout
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load

SMALL = ("dim=16", "num_layers=3", "context_length=16", "vocab_size=32", "attention.num_heads=2")
MODELS = {
    "modern": ("modern",),
    "textbook": ("textbook",),
    "parallel": ("modern", "residual.kind=parallel"),
    "deepnorm": ("modern", "residual.kind=deepnorm"),
    "one table for all layers": ("modern", "position.kind=t5"),
    "experts": ("modern", "feedforward.kind=experts"),
    "mixed": (
        "modern",
        "layer_kinds.local.attention.mask.kind=window",
        "layer_kinds.local.attention.mask.size=3",
        "layer_kinds.local.position.theta=100",
        'layers.cycle=["local", "default"]',
    ),
}


def spec_of(name: str) -> ModelSpec:
    preset, *words = MODELS[name]
    return load(preset).override(*SMALL, *words)


@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_layer_of_the_model(name: str) -> None:
    spec = spec_of(name)
    model = build(spec, seed=5).use_kernel("sdpa").eval()
    x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(0))
    where = TokenLayout(9, x.device)
    for i, whole in enumerate(model.layers):
        layer = build_layer(spec, i, seed=5).eval()
        expected = whole(x, Context(where, len(x)))
        torch.testing.assert_close(layer(x), expected, rtol=0, atol=0)
        own = layer.state_dict()
        assert all(torch.equal(own[k], v) for k, v in whole.state_dict().items())


def test_a_given_mask_counts_in_place_of_the_specs() -> None:
    layer = build_layer(spec_of("modern")).eval()
    x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(0))
    triangle = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
    torch.testing.assert_close(layer(x, attention_mask=triangle), layer(x))
    seen = torch.ones(2, 9, 9, dtype=torch.bool)
    assert not torch.allclose(layer(x, attention_mask=seen), layer(x))


def test_it_goes_where_it_is_sent_whole() -> None:
    assert all(t.is_meta for t in build_layer(spec_of("modern"), device="meta").parameters())
    layer = build_layer(spec_of("modern")).to("meta")
    assert {t.device.type for t in layer.shared.buffers()} == {"meta"}


@pytest.mark.parametrize("index", [-1, 3])
def test_a_layer_that_is_not_there(index: int) -> None:
    with pytest.raises(UserError, match=rf"index: found {index}; expected 0 to 2"):
        build_layer(spec_of("modern"), index)
