"""Training losses: cross-entropy with z-loss and label smoothing, and auxiliary losses."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from archwright.data.inputs import IGNORE
from archwright.parts.branch import Branch
from archwright.parts.embeddings import Head, VocabShards
from archwright.parts.feedforward import RouterAuxLoss
from archwright.parts.norms import without_autocast
from archwright.spec.errors import UserError

AUXILIARY = "auxiliary"
"""Attribute of `Branch` with the auxiliary loss of the last forward pass in training."""

CHUNK, CUDA_CHUNK = 2**19, 2**25
"""Logits per chunk, to fit a CPU's cache and amortise a GPU's kernel launches."""

LINEAR_CHUNK, CUDA_LINEAR_CHUNK = 2**26, 2**30
"""Bytes of float32 logits per chunk: enough rows for fast matmuls and cheap gradient accumulation."""
CUDA_ROWS = 2048
"""Minimum rows of a chunk on a GPU, where each chunk also reads and writes a gradient as large as the head."""

LEAST = 1e-30
"""Threshold for the target's probability: smaller values may underflow."""


@dataclass(frozen=True)
class Loss:
    """Terms of a loss, in nats; only `total` carries a gradient."""

    total: Float[Tensor, ""]
    """(nll_sum + z_loss * sum of squared log Z) / num_valid, plus the label-smoothing term."""
    nll_sum: Float[Tensor, ""]
    """Negative log-likelihood, summed over the batch's valid targets."""
    z_term: Float[Tensor, ""]
    """z-loss term of `total`."""
    num_targets: Int[Tensor, ""]
    """Number of valid targets in the batch."""


def cross_entropy(
    logits: Float[Tensor, "*batch vocab"],
    targets: Int[Tensor, "*batch"],
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    ignore_index: int = IGNORE,
    num_valid: int | Tensor | None = None,
    vocab: VocabShards | None = None,
) -> Loss:
    """Return the cross-entropy of logits with z-loss and label smoothing.

    total = sum over valid targets of (log Z - logit[target] + z_loss * log² Z) / num_valid, log Z = logsumexp(logits)

    The loss is computed in float32 or wider; the gradient has the dtype of the logits. Targets equal to
    `ignore_index` are not valid. Without valid targets, the loss and its gradient are 0.
    With `label_smoothing` e, (1 - e) logit[target] + e mean(logits) replaces logit[target] in `total`, which gives
    every token a weight of e / vocab. `nll_sum` is not smoothed.

    Args:
        num_valid: Divisor. Default: valid targets of this batch. With the valid targets of all microbatches and ranks,
            their losses and gradients sum to the loss and gradient of the full batch.
        vocab: Ranks that split the last axis of the logits.

    Source: Chowdhery et al., 2022, PaLM, section 5, z-loss; Szegedy et al., 2016, section 7, label smoothing.
    """
    rows, flat = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    num_targets = (flat != ignore_index).sum()
    needs_gradient = rows.requires_grad and torch.is_grad_enabled()
    total, nll_sum, z_term = (_CrossEntropy if vocab is None else _ShardedCrossEntropy).apply(  # type: ignore[no-untyped-call]
        rows,
        flat,
        float(z_loss),
        label_smoothing,
        ignore_index,
        _divisor(num_targets if num_valid is None else num_valid, rows.device),
        needs_gradient,
        vocab,
    )
    return Loss(total, nll_sum, z_term, num_targets)


def linear_cross_entropy(
    hidden: Float[Tensor, "*batch dim"],
    head: Head,
    targets: Int[Tensor, "*batch"],
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    ignore_index: int = IGNORE,
    num_valid: int | Tensor | None = None,
    whole: bool = False,
) -> Loss:
    """Return cross_entropy(head(hidden), targets, ...) without storing all logits.

    The head and the loss run on chunks of rows. The gradients of a chunk are computed before its logits are freed, and
    stored until the backward pass. This needs no additional matmul; recomputing the logits would add a third.
    Call it inside the autocast context, because the head uses autocast's dtype.

    Args:
        whole: Compute all logits at once. If ranks split them, no rank gathers them.
    """
    flat = targets.reshape(-1)
    num_targets = (flat != ignore_index).sum()
    divisor = _divisor(num_targets if num_valid is None else num_valid, flat.device)
    settings: dict[str, Any] = {
        "z_loss": z_loss,
        "label_smoothing": label_smoothing,
        "ignore_index": ignore_index,
        "vocab": head.vocab,
    }

    def loss_of(logits_of: Callable[[Tensor], Tensor], rows: Tensor) -> tuple[Tensor, ...]:
        if whole:
            logits = logits_of(rows)
            with without_autocast(rows.device.type):
                loss = cross_entropy(logits, flat, num_valid=divisor, **settings)
            return loss.total, loss.nll_sum, loss.z_term
        parameters = [p for p in head.parameters() if p.requires_grad]
        needs_gradient = torch.is_grad_enabled() and (rows.requires_grad or bool(parameters))
        terms: tuple[Tensor, ...] = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            rows,
            logits_of,
            head.d_out,
            flat,
            settings,
            divisor,
            needs_gradient,
            *parameters,
        )
        return terms

    total, nll_sum, z_term = head(hidden.reshape(-1, hidden.shape[-1]), loss_of)
    return Loss(total, nll_sum, z_term, num_targets)


def rows_per_chunk(vocab_size: int, device: str) -> int:
    """Return the rows of a chunk of `linear_cross_entropy` on a type of device."""
    if device == "cpu":
        return LINEAR_CHUNK // (4 * vocab_size)
    return max(CUDA_ROWS, CUDA_LINEAR_CHUNK // (4 * vocab_size))


def pop_aux_losses(
    model: nn.Module, mean: Callable[[Tensor], Tensor] = lambda values: values
) -> dict[str, Tensor]:
    """Return and clear the auxiliary losses of the modules, added up by `Branch.auxiliary_name`.

    A balance loss is factor * sum of f_e p_e over experts e, per layer or with f_e and p_e averaged over layers.

    Args:
        mean: Average of the shares f_e over the ranks. Their p_e need none: the losses of ranks are summed.
    """
    by_name: dict[str, list[Tensor | RouterAuxLoss]] = {}
    for module in model.modules():
        loss = vars(module).get(AUXILIARY)  # getattr would raise for most modules
        if loss is not None:
            setattr(module, AUXILIARY, None)
            named = module if isinstance(module, Branch) else Branch
            by_name.setdefault(named.auxiliary_name, []).append(loss)
    return {name: _total(losses, mean) for name, losses in by_name.items()}


def _total(
    losses: Sequence[Tensor | RouterAuxLoss], mean: Callable[[Tensor], Tensor]
) -> Float[Tensor, ""]:
    balances = [loss for loss in losses if isinstance(loss, RouterAuxLoss)]
    shares: Iterator[Tensor] = iter(())
    if balances:
        sizes = [len(loss.share) for loss in balances]
        shares = iter(mean(torch.cat([loss.share for loss in balances])).split(sizes))
    terms: list[Tensor] = []
    averaged: dict[tuple[int, float], list[RouterAuxLoss]] = {}
    for loss in losses:
        if isinstance(loss, Tensor):
            terms.append(loss)
            continue
        balance = loss._replace(share=next(shares))
        if balance.together:
            averaged.setdefault((len(balance.share), balance.factor), []).append(balance)
            terms.append(balance.rest)
        else:
            terms.append(_balance(balance.factor, balance.share, balance.mean_score) + balance.rest)
    for (_, factor), layers in averaged.items():
        share, score = (torch.stack(parts).mean(0) for parts in list(zip(*layers, strict=True))[:2])
        terms.append(_balance(factor, share, score))
    return torch.stack(terms).sum()


def aux_loss_names(model: nn.Module) -> list[str]:
    """Return the names of all auxiliary losses that a model may have, the same on every rank.

    Raises:
        UserError: A name does not end with `_loss`, or belongs to another loss.
    """
    names = sorted({m.auxiliary_name for m in model.modules() if isinstance(m, Branch)})
    for name in names:
        if not name.endswith("_loss") or name in ("z_loss", "second_loss"):
            raise UserError(
                f'auxiliary_name: found "{name}"; expected another, which ends with _loss'
            )
    return names


def _balance(factor: float, share: Tensor, mean_score: Tensor) -> Tensor:
    return factor * (share * mean_score).sum()


class _LinearCrossEntropy(torch.autograd.Function):
    """Sum loss and gradients over chunks; divide in backward, after loss scaling, to avoid underflow."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        logits_of: Callable[[Tensor], Tensor],
        num_logits: int,
        targets: Tensor,
        settings: dict[str, Any],
        divisor: Tensor,
        needs_gradient: bool,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        sums = torch.zeros(3, dtype=_upcast_dtype(hidden.dtype), device=hidden.device)
        gradients = [
            torch.zeros_like(p, dtype=_upcast_dtype(p.dtype)) for p in (hidden, *parameters)
        ]
        for rows in _slices(len(hidden), rows_per_chunk(num_logits, hidden.device.type)):
            chunk = hidden[rows].detach()
            # Hooks of a checkpointed layer would recompute it here.
            keep = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
            with torch.set_grad_enabled(needs_gradient), keep:
                chunk.requires_grad_(needs_gradient)
                logits = logits_of(chunk)
                with without_autocast(hidden.device.type):
                    loss = cross_entropy(logits, targets[rows], num_valid=1, **settings)
            sums += torch.stack([loss.total.detach(), loss.nll_sum, loss.z_term])
            if needs_gradient:
                chunk_total = loss.total
                # Free large tensors early: the logits are freed during their backward pass.
                del logits, loss
                chunk_gradients = torch.autograd.grad(chunk_total, (chunk, *parameters))
                gradients[0][rows] = chunk_gradients[0]
                for gradient, term in zip(gradients[1:], chunk_gradients[1:], strict=True):
                    gradient += term
                del chunk_total, chunk_gradients, term
        if needs_gradient:
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
        return hidden_gradient, *(None,) * 6, *rest


class _CrossEntropy(torch.autograd.Function):
    """Compute loss and gradient in a single pass over chunks of rows."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        z_loss: float,
        label_smoothing: float,
        ignore_index: int,
        divisor: Tensor,
        needs_gradient: bool,
        vocab: VocabShards | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = _upcast_dtype(logits.dtype)
        # In float16, p / divisor would underflow before the loss scale is applied in backward.
        stored_divisor = torch.ones_like(divisor) if logits.dtype == torch.float16 else divisor
        gradient = torch.empty_like(logits) if needs_gradient else None
        log_z = torch.empty(len(logits), 1, dtype=dtype, device=logits.device)
        smoothed = torch.zeros((), dtype=dtype, device=logits.device)
        valid = (targets != ignore_index)[:, None]
        targets = torch.where(valid, targets[:, None], 0)
        for rows in _chunks(logits):
            # If the dtypes match, softmax writes into the gradient.
            buffer = gradient[rows] if gradient is not None and gradient.dtype == dtype else None
            chunk = logits[rows].to(dtype)
            probabilities = torch.softmax(chunk, dim=-1, out=buffer)
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
                if buffer is None:
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
        # Reading a scalar is free on a CPU; without loss scaling it is 1.
        if factor.device.type != "cpu" or factor.item() != 1:
            unscaled, gradient = gradient, torch.empty_like(gradient)
            # Multiply in the factor's dtype: a loss scale may overflow float16.
            for rows in _chunks(unscaled):
                gradient[rows] = unscaled[rows] * factor
        return gradient, *(None,) * 7


class _ShardedCrossEntropy(_CrossEntropy):
    """Compute the loss of logits that ranks split, with two all-reduces of [tokens]; the gradient is local.

    Source: Shoeybi et al., 2019, Megatron-LM, section 3.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        z_loss: float,
        label_smoothing: float,
        ignore_index: int,
        divisor: Tensor,
        needs_gradient: bool,
        vocab: VocabShards | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert vocab is not None
        dtype, valid = _upcast_dtype(logits.dtype), (targets != ignore_index)[:, None]
        local = targets[:, None] - vocab.start
        is_local = valid & (local >= 0) & (local < logits.shape[-1])
        local = torch.where(is_local, local, 0)
        largest = vocab.max(logits.amax(-1, keepdim=True).to(dtype))  # [tokens, 1]
        # Sum of exponentials, logit of the target, and sum of logits.
        sums = torch.empty(len(logits), 3, dtype=dtype, device=logits.device)
        for rows in _chunks(logits):
            chunk = logits[rows].to(dtype)
            sums[rows, :1] = (chunk - largest[rows]).exp().sum(-1, keepdim=True)
            sums[rows, 1:2] = torch.where(is_local[rows], chunk.gather(-1, local[rows]), 0)
            sums[rows, 2:] = chunk.sum(-1, keepdim=True)
        exp_sum, logit, logit_sum = vocab.sum(sums).split(1, -1)
        log_z = largest + exp_sum.log()
        if needs_gradient:
            # In float16, p / divisor would underflow before the loss scale is applied in backward.
            stored = torch.ones_like(divisor) if logits.dtype == torch.float16 else divisor
            gradient, weight = torch.empty_like(logits), valid.to(dtype) / stored
            for rows in _chunks(logits):
                terms = (logits[rows].to(dtype) - log_z[rows]).exp()
                terms.mul_((1 + 2 * z_loss * log_z[rows]) * weight[rows])
                terms.sub_(weight[rows] * (label_smoothing / vocab.size))
                at_target = torch.where(is_local[rows], weight[rows] * (label_smoothing - 1), 0)
                gradient[rows] = terms.scatter_add_(-1, local[rows], at_target)
            ctx.save_for_backward(gradient, stored / divisor)
        nll_sum = torch.where(valid, log_z - logit, 0).sum()
        excess = torch.where(valid, logit - logit_sum / vocab.size, 0).sum()
        z_term = z_loss * torch.where(valid, log_z.square(), 0).sum() / divisor
        ctx.mark_non_differentiable(nll_sum, z_term)
        return (nll_sum + label_smoothing * excess) / divisor + z_term, nll_sum, z_term


def _divisor(num_valid: int | Tensor, device: torch.device) -> Tensor:
    """Return max(num_valid, 1) on a device; a copy of a Python number would wait for a GPU."""
    if isinstance(num_valid, Tensor):
        return num_valid.to(device).clamp(min=1)
    return torch.full((), max(num_valid, 1), device=device)


def _log_z(logits: Tensor, probabilities: Tensor, targets: Tensor) -> Tensor:
    """Return log Z = logit - log p of each row's target, or of its top token if p may underflow."""
    logit, p = logits.gather(-1, targets), probabilities.gather(-1, targets)
    # Reading a scalar is free on a CPU, and usually saves two passes over the logits.
    if logits.device.type != "cpu" or bool((p < LEAST).any()):
        logit, p = logits.amax(-1, keepdim=True), probabilities.amax(-1, keepdim=True)
    return logit - p.log()


def _upcast_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _chunks(logits: Tensor) -> list[slice]:
    num_logits = CHUNK if logits.device.type == "cpu" else CUDA_CHUNK
    return _slices(len(logits), num_logits // logits.shape[-1])


def _slices(length: int, size: int) -> list[slice]:
    size = max(1, size)
    return [slice(start, start + size) for start in range(0, length, size)]
