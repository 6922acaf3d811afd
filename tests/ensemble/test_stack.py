"""Several models as one: each has in a stack what it has alone."""

import pytest
import torch

from archwright.ensemble.stack import Stack, why_not_ensembled
from archwright.model import build
from archwright.spec.model_spec import ModelSpec

SMALL = ModelSpec(dim=16, num_layers=2, vocab_size=32, context_length=12).override(
    "attention.num_heads=2"
)
CHOICES = {
    "plain": (),
    "unit offset": ("norm.weight=unit_offset",),
    "layer norm, biases": ("norm.kind=layer", "norm.bias=true", "attention.bias=true"),
    "a bias of the embedding": ("embedding.bias=true",),
    "maps of branches as one": ("residual.kind=parallel",),
    "norms of heads": ("attention.qk_norm.kind=rms",),
    "dynamic tanh": ("norm.kind=dyt", "attention.qk_norm.kind=dyt"),
    "dynamic tanh of each head": (
        "attention.qk_norm.kind=dyt",
        "attention.qk_norm.bias=false",
        "attention.qk_norm_over=per_head",
    ),
    "a skip from the embedding": ("residual.embedding_skip=true",),
    "value embeddings": ("attention.value_embedding.kind=scaled",),
    "gated value embeddings": ("attention.value_embedding.kind=gated",),
    "narrow table": ("embedding.dim=8", "embedding.scale=sqrt_dim"),
}


@pytest.mark.parametrize("words", CHOICES.values(), ids=CHOICES)
def test_each_model_is_what_it_is_alone(words: tuple[str, ...]) -> None:
    models = [build(SMALL.override(*words), seed=seed).double() for seed in range(3)]
    dice = torch.Generator().manual_seed(0)
    for model in models:
        for parameter in model.parameters():
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=dice).double()
    tokens = torch.randint(32, (6, 9), generator=dice)  # two rows of each
    alone = [model.hidden(tokens[2 * i : 2 * i + 2]) for i, model in enumerate(models)]
    tables = [model.embedding.weight for model in models]
    wanted = torch.autograd.grad(sum(x.square().sum() for x in alone), tables)
    stack = Stack(models)
    found = stack(tokens)
    torch.testing.assert_close(found, torch.cat(alone))
    table = stack.by_name()["embedding.weight"]
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), table)[0], torch.stack(wanted)
    )


def test_models_keep_their_weights_as_views() -> None:
    models = [build(SMALL, seed=seed) for seed in range(2)]
    stack = Stack(models)
    models[1].layers[0].attention.query.weight.data.fill_(7.0)
    stacked = stack.by_name()["layers.0.attention.query.weight"]
    assert (stacked[1] == 7).all()
    assert not (stacked[0] == 7).any()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("attention.sinks=true",), "parameters that are not stacked"),
        (("feedforward.kind=experts",), "the load of a whole batch"),
    ],
)
def test_what_cannot_be_stacked_has_a_reason(words: tuple[str, ...], why: str) -> None:
    model = build(SMALL.override(*words))
    assert why in why_not_ensembled(model)
    with pytest.raises(ValueError, match=why):
        Stack([model, model])
