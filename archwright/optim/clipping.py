"""Keeping a single bad batch from throwing the model off."""

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[Tensor],
    max_norm: float | None = None,
    norm_of: Callable[[Tensor], Tensor] = lambda own: own,
) -> Float[Tensor, ""]:
    """Scale all gradients by min(1, max_norm / norm) in place, and return the norm before.

    norm is the root of the sum of all squares, in float32 at least; `None` only measures. A norm
    that is not finite leaves the gradients unusable: the caller must look before it steps. Where these are
    parts of larger gradients, `norm_of` returns the norm of all from that of these.
    Source: Pascanu et al., 2013, algorithm 1.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    dtype = torch.promote_types(gradients[0].dtype, torch.float32)
    norms = torch._foreach_norm(gradients, 2, dtype=dtype)
    norm: Tensor = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))
    norm = norm_of(norm)
    # On a CPU looking costs nothing, and mostly saves a pass over the gradients.
    if max_norm is not None and not (norm.device.type == "cpu" and norm.item() <= max_norm):
        torch._foreach_mul_(gradients, (max_norm / norm).clamp(max=1.0))
    return norm
