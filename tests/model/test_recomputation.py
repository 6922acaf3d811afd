"""Layers that keep less for their backward pass: the same gradients, and what is not computed a second time."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy

from archwright.model import build, recomputation
from archwright.model.model import Decoder
from archwright.spec.machine import ActivationCheckpointing
from archwright.spec.read import load
from archwright.spec.scale_down import tiny

MODELS = {
    "modern": ("modern",),
    "soft caps, norms on both sides": ("gemma-2-2b",),
    "experts": ("mixtral-8x7b", "feedforward.shared=gated", "feedforward.balance_loss=1"),
    "latents": ("deepseek-v2-lite",),
    "dropout": ("textbook", "residual.dropout=0.1", "attention.dropout=0.1"),
    "shared layers": ("albert-base",),
    "reversible layers": ("reformer",),
    "two stacks": ("t5-small",),
    "hashing": ("modern", "attention.kind=lsh", "attention.chunk_size=8", "position.kind=none"),
}
ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


class Calls(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def made(name: str, checkpointing: ActivationCheckpointing, kernel: str = "sdpa") -> Decoder:
    name, *changes = MODELS[name]
    model = build(tiny(load(name)).override(*changes), seed=3).double().use_kernel(kernel)
    return model.checkpoint_activations(checkpointing)


@contextmanager
def trained(model: Decoder) -> Iterator[Tensor]:
    """Yield something to minimise."""
    torch.manual_seed(1)
    tokens = torch.randint(0, 60, (2, 24))
    two = not model.spec.encoder.is_none
    yield model(tokens, **({"decoder_tokens": tokens} if two else {})).logits.logsumexp(-1).sum()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kernel", ["eager", "sdpa", "blockwise"])
def test_gradients_are_those_of_layers_that_keep_all(name: str, kernel: str) -> None:
    """Bit for bit."""
    found = []
    for checkpointing in ("none", "selective"):
        model = made(name, checkpointing, kernel)  # type: ignore[arg-type]
        with trained(model) as total:
            total.backward()
        found.append([p.grad for p in model.parameters()])
    assert any(g is not None and g.any() for g in found[0])
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


@pytest.mark.parametrize("name", ["modern", "experts"])
def test_products_with_weights_and_attention_are_computed_once(name: str) -> None:
    number = {}
    for checkpointing in ("none", "selective", "full"):
        model = made(name, checkpointing)  # type: ignore[arg-type]
        with trained(model) as total, Calls() as calls:
            total.backward()
        number[checkpointing] = calls.number
    for of_products in ("mm", "addmm", "bmm", "topk", ATTENTION):
        assert number["selective"][of_products] == number["none"][of_products]
    assert number["full"]["mm"] > number["none"]["mm"]
    assert number["full"][ATTENTION] > number["none"][ATTENTION] == 0
    # Norms, rotations and gates are computed again.
    assert number["selective"]["mul"] > number["none"]["mul"]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_that_draws_is_computed_again(dropout: float) -> None:
    """Else what draws behind it would have its numbers."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention.default
    given = [torch.empty(0)] * 3
    kept = CheckpointPolicy.PREFER_RECOMPUTE if dropout else CheckpointPolicy.MUST_SAVE
    assert recomputation._policy(None, flash, *given, dropout) == kept
    assert recomputation._policy(None, flash, *given, dropout_p=dropout) == kept


def test_flex_attention_is_computed_once() -> None:
    """It is no operation of the usual kind, and has no gradients on a CPU."""
    flex = torch.ops.higher_order.flex_attention
    assert recomputation._policy(None, flex) == CheckpointPolicy.MUST_SAVE


def test_layers_that_are_compiled_are_left_to_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def watched(layer: Any, x: Tensor, context: Any, **how: Any) -> Any:
        seen.append(layer)
        return layer(x, context)

    monkeypatch.setattr(recomputation, "checkpoint", watched)
    model = made("modern", "selective")
    layers = [*model.all_layers]
    with trained(model):
        assert seen == layers
    for layer in layers:
        layer.compile()
    with torch.compiler.set_stance("force_eager"):  # which takes no time
        with trained(model):
            assert seen == layers
        model.checkpoint_activations("full")
        with trained(model):
            assert seen == [*layers, *layers]
