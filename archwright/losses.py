"""Losses: cross-entropy with z-loss and label smoothing, summed over valid tokens, then divided."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from archwright.data.inputs import IGNORE
from archwright.parts.feedforward import RouterAuxLoss
from archwright.parts.linear import Linear

AUXILIARY = "auxiliary"
"""The attribute in which a module keeps what it asks to be minimised besides, of its last forward in training."""

CHUNK, CUDA_CHUNK = 2**19, 2**25
"""Logits that are read at a time: what stays near a CPU's cores, or is worth the launch of a kernel."""

LINEAR_CHUNK = 2**26
"""Bytes of float32 logits at a time: enough rows for fast products, beside which adding up the gradients of
the head costs little."""


LEAST = 1e-30
"""Probabilities below this have lost digits, or are about to."""


@dataclass(frozen=True)
class Loss:
    """A loss by its parts; only `total` carries a gradient. Nats throughout."""

    total: Float[Tensor, ""]
    """The loss: (nll_sum + z_loss * sum of squared log Z) / num_valid, and what label smoothing adds."""
    nll_sum: Float[Tensor, ""]
    """Negative log-likelihood, summed over this batch's valid targets."""
    z_term: Float[Tensor, ""]
    """The share of `total` that is z-loss."""
    num_targets: Int[Tensor, ""]
    """Valid targets of this batch."""
    further_nll: Float[Tensor, ""] | None = None
    """Of further predicting streams, the negative log-likelihood summed over the same targets, in the mean of streams;
    None where there are none."""


def cross_entropy(
    logits: Float[Tensor, "*batch vocab"],
    targets: Int[Tensor, "*batch"],
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    ignore_index: int = IGNORE,
    num_valid: int | Tensor | None = None,
) -> Loss:
    """Return the mean of log Z - logit[target] + z_loss * log² Z over the valid targets.

    log Z is the logsumexp of a row of logits; all of it is computed in float32 at least, whatever
    the dtype of the logits, and the gradient comes back in theirs. A target of `ignore_index` is
    not valid. `num_valid` replaces the divisor: with the number of valid targets of all
    micro-batches and ranks, their losses and gradients add up to those of the whole batch. No valid
    target at all gives 0, with zero gradients.
    With `label_smoothing` e, (1 - e) logit[target] + e mean(logits) stands for logit[target] in `total`, so that
    every token has e / vocab of the target's weight; `nll_sum` stays as it is.
    z-loss: Chowdhery et al., 2022, PaLM, section 5. Label smoothing: Szegedy et al., 2016, section 7.
    """
    rows, flat = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    num_targets = (flat != ignore_index).sum()
    divisor = num_targets if num_valid is None else torch.as_tensor(num_valid, device=rows.device)
    wants_gradient = rows.requires_grad and torch.is_grad_enabled()
    total, nll_sum, z_term = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        rows,
        flat,
        float(z_loss),
        label_smoothing,
        ignore_index,
        divisor.clamp(min=1),
        wants_gradient,
    )
    return Loss(total, nll_sum, z_term, num_targets)


def linear_cross_entropy(
    hidden: Float[Tensor, "*batch dim"],
    head: Linear,
    targets: Int[Tensor, "*batch"],
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    ignore_index: int = IGNORE,
    num_valid: int | Tensor | None = None,
) -> Loss:
    """Return cross_entropy(head(hidden), targets, ...) without ever holding all logits.

    Rows go through head and loss a chunk at a time. Where gradients are wanted, those of the chunk are
    computed at once, before its logits are dropped: that costs no product more than a head outside,
    while computing the logits again in the backward pass would add a third. What is kept instead is the
    gradient of the head's parameters. Under autocast the head is computed as narrow as elsewhere, so
    that a call belongs inside.
    """
    rows, flat = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    num_targets = (flat != ignore_index).sum()
    divisor = num_targets if num_valid is None else torch.as_tensor(num_valid, device=rows.device)
    parameters = [p for p in head.parameters() if p.requires_grad]
    wants_gradient = torch.is_grad_enabled() and (rows.requires_grad or bool(parameters))
    total, nll_sum, z_term = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        rows,
        head,
        flat,
        z_loss,
        label_smoothing,
        ignore_index,
        divisor.clamp(min=1),
        wants_gradient,
        *parameters,
    )
    return Loss(total, nll_sum, z_term, num_targets)


def of_streams(losses: Sequence[Loss], decay: float = 1.0) -> Loss:
    """Return the loss of predicting streams of the same targets: sum of a_i L_i, with a_i = decay^i / sum of decay^j
    and i, j counted from 0. What is told of likelihoods is the first stream's, which predicts the next token.

    Qi et al., 2020, ProphetNet: future n-gram prediction.
    """
    first, *further = losses
    if not further:
        return first
    weights = [decay**i for i in range(len(losses))]
    shares = [weight / sum(weights) for weight in weights]
    total, z_term = (
        torch.stack([share * term for share, term in zip(shares, terms, strict=True)]).sum()
        for terms in ([loss.total for loss in losses], [loss.z_term for loss in losses])
    )
    mean = torch.stack([loss.nll_sum for loss in further]).mean()
    return Loss(total, first.nll_sum, z_term, first.num_targets, mean)


def pop_aux_losses(
    model: nn.Module, mean: Callable[[Tensor], Tensor] = lambda values: values
) -> Tensor:
    """Return the sum of what modules asked to be minimised in their last forward, and forget it; 0 of none.

    A balance loss is a factor of the sum of f_e p_e, with f_e and p_e those of a layer, or means over all layers.
    `mean` takes the shares f_e of these rows to those of all rows that are balanced together; their p_e then add up.
    """
    asked = []
    for module in model.modules():
        found = vars(module).get(AUXILIARY)  # a module without it would make an error of that
        if found is not None:
            setattr(module, AUXILIARY, None)
            asked.append(found)
    balances = [found for found in asked if isinstance(found, RouterAuxLoss)]
    shares: Iterator[Tensor] = iter(())
    if balances:
        sizes = [len(found.share) for found in balances]
        shares = iter(mean(torch.cat([found.share for found in balances])).split(sizes))
    taken: list[Tensor] = []
    together: dict[tuple[int, float], list[RouterAuxLoss]] = {}
    for found in asked:
        if isinstance(found, Tensor):
            taken.append(found)
            continue
        balance = found._replace(share=next(shares))
        if balance.together:
            together.setdefault((len(balance.share), balance.factor), []).append(balance)
            taken.append(balance.rest)
        else:
            taken.append(_balance(balance.factor, balance.share, balance.mean_score) + balance.rest)
    for (_, factor), layers in together.items():
        share, score = (torch.stack(parts).mean(0) for parts in list(zip(*layers, strict=True))[:2])
        taken.append(_balance(factor, share, score))
    return torch.stack(taken).sum() if taken else torch.zeros(())


def _balance(factor: float, share: Tensor, mean_score: Tensor) -> Tensor:
    return factor * (share * mean_score).sum()


class _LinearCrossEntropy(torch.autograd.Function):
    """Sums of loss and gradients over chunks; the divisor joins in the backward pass, after a loss
    scale has kept narrow gradients from underflow."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Linear,
        targets: Tensor,
        z_loss: float,
        label_smoothing: float,
        ignore_index: int,
        divisor: Tensor,
        wants_gradient: bool,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        sums = torch.zeros(3, dtype=_upcast_dtype(hidden.dtype), device=hidden.device)
        gradients = [
            torch.zeros_like(p, dtype=_upcast_dtype(p.dtype)) for p in (hidden, *parameters)
        ]
        for rows in _slices(len(hidden), LINEAR_CHUNK // (4 * head.d_out)):
            chunk = hidden[rows].detach()
            with torch.set_grad_enabled(wants_gradient):
                chunk.requires_grad_(wants_gradient)
                logits = head(chunk)
                with torch.autocast(hidden.device.type, enabled=False):
                    loss = cross_entropy(
                        logits,
                        targets[rows],
                        z_loss=z_loss,
                        label_smoothing=label_smoothing,
                        ignore_index=ignore_index,
                        num_valid=1,
                    )
            sums += torch.stack([loss.total.detach(), loss.nll_sum, loss.z_term])
            if wants_gradient:
                chunk_total = loss.total
                # What is large goes as soon as it may: logits inside of their backward pass.
                del logits, loss
                chunk_gradients = torch.autograd.grad(chunk_total, (chunk, *parameters))
                gradients[0][rows] = chunk_gradients[0]
                for gradient, more in zip(gradients[1:], chunk_gradients[1:], strict=True):
                    gradient += more
                del chunk_total, chunk_gradients, more
        if wants_gradient:
            ctx.save_for_backward(divisor, *gradients)
            ctx.dtypes = [p.dtype for p in (hidden, *parameters)]
        total, nll_sum, z_term = sums[0] / divisor, sums[1], sums[2] / divisor
        ctx.mark_non_differentiable(nll_sum, z_term)
        return total, nll_sum, z_term

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, total: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        divisor, *gradients = ctx.saved_tensors
        factor = total / divisor
        hidden_gradient, *rest = (
            (gradient * factor).to(dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return hidden_gradient, *(None,) * 7, *rest


class _CrossEntropy(torch.autograd.Function):
    """Loss and gradient in one pass over cache-sized chunks of rows."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        z_loss: float,
        label_smoothing: float,
        ignore_index: int,
        divisor: Tensor,
        wants_gradient: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = _upcast_dtype(logits.dtype)
        # float16 would lose p / divisor to underflow before a loss scale arrives in backward.
        stored_divisor = torch.ones_like(divisor) if logits.dtype == torch.float16 else divisor
        gradient = torch.empty_like(logits) if wants_gradient else None
        log_z = torch.empty(len(logits), 1, dtype=dtype, device=logits.device)
        smoothed = torch.zeros((), dtype=dtype, device=logits.device)
        valid = (targets != ignore_index)[:, None]
        targets = torch.where(valid, targets[:, None], 0)
        for rows in _chunks(logits):
            # Where the dtype fits, the gradient is computed in its own memory.
            home = gradient[rows] if gradient is not None and gradient.dtype == dtype else None
            chunk = logits[rows].to(dtype)
            probabilities = torch.softmax(chunk, dim=-1, out=home)
            log_z[rows] = _log_z(chunk, probabilities, targets[rows])
            if label_smoothing:
                excess = chunk.gather(-1, targets[rows]) - chunk.mean(-1, keepdim=True)
                smoothed += label_smoothing * torch.where(valid[rows], excess, 0).sum()
            if gradient is not None:
                weight = valid[rows].to(dtype) / stored_divisor
                probabilities.mul_((1 + 2 * z_loss * log_z[rows]) * weight)
                if label_smoothing:
                    probabilities.sub_(weight * (label_smoothing / logits.shape[-1]))
                probabilities.scatter_add_(-1, targets[rows], weight * (label_smoothing - 1))
                if home is None:
                    gradient[rows] = probabilities
        nll_sum = torch.where(valid, log_z - logits.gather(-1, targets), 0).sum()
        z_term = torch.where(valid, log_z.square(), 0).sum() * z_loss / divisor
        if gradient is not None:
            ctx.save_for_backward(gradient, stored_divisor / divisor)
        ctx.mark_non_differentiable(nll_sum, z_term)
        return (nll_sum + smoothed) / divisor + z_term, nll_sum, z_term

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, total: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        gradient, rest = ctx.saved_tensors
        factor = (total * rest).reshape(1, 1)
        # On a CPU looking at a number costs nothing, and in plain training it is 1.
        if factor.device.type != "cpu" or factor.item() != 1:
            unscaled, gradient = gradient, torch.empty_like(gradient)
            for rows in _chunks(
                unscaled
            ):  # in the factor's dtype: in float16 a loss scale overflows
                gradient[rows] = unscaled[rows] * factor
        return gradient, *(None,) * 6


def _log_z(logits: Tensor, probabilities: Tensor, targets: Tensor) -> Tensor:
    """Return log Z = logit - log p of a row's target; where that p could underflow, of the largest."""
    logit, p = logits.gather(-1, targets), probabilities.gather(-1, targets)
    # On a CPU looking at a number costs nothing, and mostly saves two passes over the logits.
    if logits.device.type != "cpu" or bool((p < LEAST).any()):
        logit, p = logits.amax(-1, keepdim=True), probabilities.amax(-1, keepdim=True)
    return logit - p.log()


def _upcast_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _chunks(logits: Tensor) -> list[slice]:
    most = CHUNK if logits.device.type == "cpu" else CUDA_CHUNK
    return _slices(len(logits), most // logits.shape[-1])


def _slices(length: int, size: int) -> list[slice]:
    size = max(1, size)
    return [slice(start, start + size) for start in range(0, length, size)]
