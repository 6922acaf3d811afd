"""Gradient clipping, against the effect of a single bad batch."""

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[Tensor],
    max_norm: float | None = None,
    norm_of: Callable[[Tensor], Tensor] = lambda norm: norm,
) -> Float[Tensor, ""]:
    """Scale all gradients by min(1, max_norm / norm) in place, and return norm.

    norm is the L2 norm of all gradients together, in float32 or wider. If it is not finite, gradients are unusable:
    check it before a step. Without `max_norm`, gradients do not change. `norm_of` maps the norm of local shards to the
    norm of complete gradients.
    Source: Pascanu et al., 2013, algorithm 1.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    dtype = torch.promote_types(gradients[0].dtype, torch.float32)
    norms = torch._foreach_norm(gradients, 2, dtype=dtype)
    norm: Tensor = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))
    norm = norm_of(norm)
    # On a CPU, item() needs no synchronization, and usually saves a pass over the gradients.
    if max_norm is not None and not (norm.device.type == "cpu" and norm.item() <= max_norm):
        torch._foreach_mul_(gradients, (max_norm / norm).clamp(max=1.0))
    return norm
