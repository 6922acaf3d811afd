"""One step of training."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from archwright.data.inputs import IGNORE, Batch
from archwright.losses import Loss, cross_entropy, linear_cross_entropy, pop_aux_losses
from archwright.machine.liger import FusedHead, fused_cross_entropy
from archwright.machine.precision import Precision
from archwright.optim import clip_gradients, set_learning_rates
from archwright.parts.branch import Branch


@dataclass(frozen=True)
class StepResult:
    """Results of a step: means in nats per token, and the gradient's norm before clipping."""

    loss: float
    z_loss: float
    grad_norm: float
    finite: bool
    """Whether loss and gradient are numbers; if not, nothing was updated."""
    router_loss: float = 0.0
    """Auxiliary losses of routers."""
    second_loss: float | None = None
    """Of what is learned beside tokens, in nats per row; None where that is nothing."""


@dataclass(frozen=True)
class LossStats:
    """Results of a pass over a batch: means in nats per token."""

    loss: float
    z_loss: float
    router_loss: float = 0.0
    second_loss: float | None = None


def train_step(
    model: nn.Module,
    batch: Batch,
    optimizers: Mapping[str, torch.optim.Optimizer],
    *,
    lr_scale: float,
    precision: Precision,
    max_grad_norm: float | None = 1.0,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    grad_accum_steps: int = 1,
    chunked: bool = False,
) -> StepResult:
    """Forward and backward over the parts of a batch, clip, update: `lr_scale` is the share of the peaks.

    The summed loss is divided by the number of valid targets of the whole batch, so that the parts'
    gradients add up to the batch's. What routers ask for besides is computed on each part by itself, and
    counts by its share of the rows. Where rows are judged as a whole, the mean of that loss is
    added. A loss or a gradient that is not finite
    updates nothing. `chunked` logits never exist all at once. Branches then move
    what follows no gradient by `after_step`, by what they saw in all parts.
    """
    num_valid = valid_targets(batch)
    loss, z_term, router_loss = 0.0, 0.0, 0.0
    second_loss = None if batch.sequence_targets is None else 0.0
    for part in batch.split(grad_accum_steps):
        loss_of = _chunked_loss if chunked else _whole_loss
        part_loss, judged = loss_of(
            model,
            part,
            precision,
            z_loss=z_loss,
            label_smoothing=label_smoothing,
            num_valid=num_valid,
        )
        auxiliary = pop_aux_losses(model) * (len(part.targets) / len(batch.targets))
        total = part_loss.total + auxiliary
        if second_loss is not None:
            assert judged is not None, "the rules of a run ask for a head of rows"
            assert part.sequence_targets is not None, "parts have what their batch has"
            own = sequence_nats(judged, part.sequence_targets).sum() / len(batch.targets)
            total, second_loss = total + own, second_loss + own.item()
        precision.scaled(total).backward()
        router_loss += auxiliary.item()
        loss += part_loss.nll_sum.item() / num_valid
        z_term += part_loss.z_term.item()
    seen = LossStats(loss, z_term, router_loss, second_loss)
    return update(
        model, optimizers, seen, lr_scale=lr_scale, precision=precision, max_grad_norm=max_grad_norm
    )


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return a batch of arrays as tensors on a device."""
    return batch.map(lambda array: torch.from_numpy(array).to(device, non_blocking=True))


def valid_targets(batch: Batch) -> int:
    """Return what a batch's summed loss is divided by, at least 1."""
    return max(1, int((batch.targets != IGNORE).sum()))


def update(
    model: nn.Module,
    optimizers: Mapping[str, torch.optim.Optimizer],
    seen: LossStats,
    *,
    lr_scale: float,
    precision: Precision,
    max_grad_norm: float | None,
) -> StepResult:
    """Clip the gradients that the parameters have, update by them and drop them; see `train_step`."""
    precision.unscale(optimizers.values())
    # Asking the optimizers needs no walk through the model.
    groups = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
    parameters = [parameter for group in groups for parameter in group["params"]]
    grad_norm = clip_gradients(parameters, max_grad_norm).item()
    # A loss scale mends its own overflows.
    finite = math.isfinite(seen.loss) and (math.isfinite(grad_norm) or precision.scales)
    if finite:
        set_learning_rates(optimizers, lr_scale)
        for optimizer in optimizers.values():
            precision.step(optimizer)
        precision.update()
    for module in model.modules():
        if isinstance(module, Branch):
            module.after_step(updated=finite)
    for optimizer in optimizers.values():
        optimizer.zero_grad(set_to_none=True)
    return StepResult(seen.loss, seen.z_loss, grad_norm, finite, seen.router_loss, seen.second_loss)


def sequence_nats(
    logits: Float[Tensor, "batch classes"], targets: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Return -ln p of what each row is as a whole, in float32 or wider."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets, reduction="none")


def _whole_loss(
    model: nn.Module, part: Batch, precision: Precision, **settings: Any
) -> tuple[Loss, Tensor | None]:
    """Return the loss of tokens, and the logits of rows where the model judges them."""
    with precision.autocast():
        out = model(**part.inputs.given())
    return cross_entropy(out.logits, part.targets, **settings), out.sequence_logits


def _chunked_loss(
    model: Any, part: Batch, precision: Precision, *, label_smoothing: float, **settings: Any
) -> tuple[Loss, Tensor | None]:
    with precision.autocast():
        hidden = model.hidden(**part.inputs.given())
        judged = model.sequence_logits(hidden, part.inputs.padding_mask)
        # The fused kernel does not say the loss without label smoothing beside that with it.
        if isinstance(model.head, FusedHead) and not label_smoothing:
            return fused_cross_entropy(hidden, model.head, part.targets, **settings), judged
        settings["label_smoothing"] = label_smoothing
        return linear_cross_entropy(hidden, model.head, part.targets, **settings), judged
