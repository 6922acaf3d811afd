"""The last stretch of texts, in a process that asks no other."""

import pytest
import torch

from archwright.model.build import build_layer
from archwright.parts.context import Context
from archwright.parts.token_layout import token_layout
from archwright.scale.stretches import LastStretch
from archwright.spec.read import load


@pytest.mark.parametrize("mask", ["causal", "window"])
@pytest.mark.parametrize("kernel", ["eager", "sdpa", "blockwise"])
@pytest.mark.parametrize("has_documents", [False, True])
def test_it_attends_as_a_text_that_repeats_it(mask: str, kernel: str, has_documents: bool) -> None:
    """Where positions change nothing, a text of three times the same tokens has the keys that stand for others'."""
    spec = load("modern").tiny().override("position.kind=none", f"attention.mask.kind={mask}")
    attention = build_layer(spec).mixers()["attention"]
    attention.use_kernel(kernel)
    own = torch.randn(2, 5, spec.dim, generator=torch.Generator().manual_seed(0))
    tokens = torch.zeros(2, 15, dtype=torch.long)
    documents = (torch.arange(15) > 6).long().expand(2, -1) if has_documents else None
    layout = token_layout(tokens, None, documents)

    def outcome(x: torch.Tensor, context: Context) -> tuple[torch.Tensor, torch.Tensor]:
        x.requires_grad_()
        last = attention(x, context)[:, -5:]
        (gradient,) = torch.autograd.grad(last.square().sum(), x)
        return last, gradient

    expected, parts = outcome(own.repeat(1, 3, 1), Context(layout, 2, tokens=tokens))
    found, gradient = outcome(own.clone(), LastStretch(layout, tokens[:, -5:]))
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(gradient, parts.unflatten(1, (3, 5)).sum(1), atol=1e-5)
