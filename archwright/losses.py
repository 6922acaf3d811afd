"""What is minimised: cross-entropy with z-loss, summed over valid tokens, then divided."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORE = -100


@dataclass(frozen=True)
class Loss:
    """A loss by its parts; only `total` carries a gradient. Nats throughout."""

    total: Float[Tensor, ""]
    """What is minimised: (nll_sum + z_loss * sum of squared log Z) / num_valid."""
    nll_sum: Float[Tensor, ""]
    """Negative log-likelihood, summed over this batch's valid targets."""
    z_term: Float[Tensor, ""]
    """The share of `total` that is z-loss."""
    num_targets: Int[Tensor, ""]
    """Valid targets of this batch."""


def cross_entropy(
    logits: Float[Tensor, "*batch vocab"],
    targets: Int[Tensor, "*batch"],
    *,
    z_loss: float = 0.0,
    ignore_index: int = IGNORE,
    num_valid: int | Tensor | None = None,
) -> Loss:
    """Return the mean of log Z - logit[target] + z_loss * log² Z over the valid targets.

    log Z is the logsumexp of a row of logits; all of it is computed in float32 at least, whatever
    the dtype of the logits, and the gradient comes back in theirs. A target of `ignore_index` is
    not valid. `num_valid` replaces the divisor: with the number of valid targets of all
    micro-batches and ranks, their losses and gradients add up to those of the whole batch. No valid
    target at all gives 0, with zero gradients.
    z-loss: Chowdhery et al., 2022, PaLM, section 5.
    """
    rows, flat = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    num_targets = (flat != ignore_index).sum()
    divisor = num_targets if num_valid is None else torch.as_tensor(num_valid, device=rows.device)
    wants_gradient = rows.requires_grad and torch.is_grad_enabled()
    total, nll_sum, z_term = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        rows, flat, float(z_loss), ignore_index, divisor.clamp(min=1), wants_gradient
    )
    return Loss(total, nll_sum, z_term, num_targets)


class _CrossEntropy(torch.autograd.Function):
    """Loss and gradient in one sweep over rows, so that float32 exists only for a cache-sized chunk
    and each exponential is computed once."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        z_loss: float,
        ignore_index: int,
        divisor: Tensor,
        wants_gradient: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        # float16 would lose p / divisor to underflow before a loss scale arrives in backward.
        stored_divisor = torch.ones_like(divisor) if logits.dtype == torch.float16 else divisor
        gradient = torch.empty_like(logits) if wants_gradient else None
        log_z = torch.empty(len(logits), 1, dtype=dtype, device=logits.device)
        valid = (targets != ignore_index)[:, None]
        targets = torch.where(valid, targets[:, None], 0)
        for rows in _chunks(logits):
            # Where the dtype fits, the gradient is computed in its own memory.
            home = gradient[rows] if gradient is not None and gradient.dtype == dtype else None
            chunk = logits[rows].to(dtype)
            probabilities = torch.softmax(chunk, dim=-1, out=home)
            # exp(max - log Z) is the largest probability, which cannot underflow.
            largest = chunk.amax(-1, keepdim=True), probabilities.amax(-1, keepdim=True)
            log_z[rows] = largest[0] - largest[1].log_()
            if gradient is not None:
                weight = valid[rows].to(dtype) / stored_divisor
                probabilities.mul_((1 + 2 * z_loss * log_z[rows]) * weight)
                probabilities.scatter_add_(-1, targets[rows], -weight)
                if home is None:
                    gradient[rows] = probabilities
        nll_sum = torch.where(valid, log_z - logits.gather(-1, targets), 0).sum()
        z_term = torch.where(valid, log_z.square(), 0).sum() * z_loss / divisor
        if gradient is not None:
            ctx.save_for_backward(gradient, stored_divisor / divisor)
        ctx.mark_non_differentiable(nll_sum, z_term)
        return nll_sum / divisor + z_term, nll_sum, z_term

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, total: Tensor, *_: Tensor
    ) -> tuple[Tensor, None, None, None, None, None]:
        gradient, rest = ctx.saved_tensors
        factor = (total * rest).reshape(1, 1)
        # On a CPU looking at a number costs nothing, and in plain training it is 1.
        if factor.device.type != "cpu" or factor.item() != 1:
            gradient = _scaled(gradient, factor)
        return gradient, None, None, None, None, None


def _scaled(gradient: Tensor, factor: Tensor) -> Tensor:
    """Multiply in the dtype of the factor: in float16 a loss scale overflows."""
    scaled = torch.empty_like(gradient)
    for rows in _chunks(gradient):
        scaled[rows] = gradient[rows] * factor
    return scaled


def _chunks(logits: Tensor) -> list[slice]:
    """Cut the rows so that a chunk in float32 stays near the cores, or is worth a kernel launch."""
    num_elements = 2**19 if logits.device.type == "cpu" else 2**25
    size = max(1, num_elements // logits.shape[-1])
    return [slice(start, start + size) for start in range(0, len(logits), size)]
