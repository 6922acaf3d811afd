"""Activation checkpointing: layers store less for the backward pass, which recomputes the rest."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from archwright.parts.context import Context
from archwright.spec.machine import ActivationCheckpointing

if TYPE_CHECKING:
    from archwright.model.model import Layer

PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._grouped_mm.default,
    torch.ops.aten._scaled_mm.default,
}
"""Products with weights."""
ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default,
    torch.ops.higher_order.flex_attention,
}
"""Attention as one operation, without stored scores. Other kernels store scores as batched products, which would need
more memory than all other activations."""

CHOICES = {torch.ops.aten.topk.default}
"""Choices of experts, which another order of sums could change in the recomputation."""


def recomputed(
    layer: "Layer",
    x: Float[Tensor, "batch length dim"],
    context: Context,
    checkpointing: ActivationCheckpointing,
) -> Float[Tensor, "batch length dim"]:
    """Return layer(x, context); the backward pass recomputes activations that are not stored.

    Args:
        checkpointing: Stored activations. full: x. selective: x, and the results of products with weights and of
            attention (Korthikanti et al., 2022, section 5, recompute scores; here also norms, activations and gates).
            A compiler stores about as much, so compiled layers are called directly.
    """
    is_compiled = layer._compiled_call_impl is not None
    if checkpointing == "selective" and is_compiled:
        result: Tensor = layer(x, context)
        return result
    out: Tensor = checkpoint(
        layer, x, context, use_reentrant=False, context_fn=lambda: _passes(layer, checkpointing)
    )
    return out


def _passes(
    layer: "Layer", checkpointing: ActivationCheckpointing
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the context managers of the forward pass and of the recomputation."""
    if checkpointing == "full":
        return nullcontext(), _again(layer, nullcontext())
    first, again = create_selective_checkpoint_contexts(_policy)
    return first, _again(layer, again)


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Store the result of an operation, unless it draws random numbers."""
    fixed = operation in PRODUCTS | CHOICES
    save = fixed or (operation in ATTENTION and not _drops(operation, args, kwargs))
    return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE


def _drops(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True if attention has dropout."""
    if isinstance(operation, torch._ops.HigherOrderOperator):
        return False  # FlexAttention has none
    names = [argument.name for argument in operation._schema.arguments]
    values = dict(zip(names, args, strict=False)) | kwargs
    return bool(values.get("dropout_p", 0.0))


@contextmanager
def _again(layer: "Layer", inside: AbstractContextManager[Any]) -> Iterator[None]:
    """Mark the recomputation in all branches: they have counted this batch already."""
    branches = [layer.branch(name) for name in layer.branches]
    for branch in branches:
        branch.first_pass = False
    try:
        with inside:
            yield
    finally:
        for branch in branches:
            branch.first_pass = True
