"""A training step: forward, backward, clip, update."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archwright.data.inputs import IGNORE, Batch
from archwright.losses import (
    Loss,
    aux_loss_names,
    cross_entropy,
    linear_cross_entropy,
    pop_aux_losses,
)
from archwright.machine.liger import FusedHead, fused_cross_entropy
from archwright.machine.precision import Precision
from archwright.model.model import Decoder, Output
from archwright.optim import AdamW, clip_gradients, set_learning_rates
from archwright.parts.branch import Branch
from archwright.parts.embeddings import Head
from archwright.scale.processes import ALONE, Passes, Processes


@dataclass(frozen=True)
class StepResult:
    """Mean losses of a step in nats per token, and the gradient norm before clipping."""

    loss: float
    z_loss: float
    grad_norm: float
    finite: bool
    """True if loss and gradient are finite; otherwise, nothing was updated."""
    auxiliary: Mapping[str, float] = field(default_factory=dict)
    """Auxiliary losses by name, such as router_loss; see `Branch.auxiliary`."""
    second_loss: float | None = None
    """Loss of the second task, in nats per sequence or token; None without a second task."""


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
    second_weight: float = 1.0,
    processes: Processes = ALONE,
    parts: Sequence[Batch] | None = None,
) -> StepResult:
    """Train on a batch in `grad_accum_steps` microbatches.

    The summed loss is divided by the valid targets of the whole batch, so that the microbatches' gradients add up to
    the batch's. An auxiliary loss, such as a router's, is weighted by its microbatch's share of the targets. The mean
    loss of a second task (sequence labels, or replaced tokens) is added, times `second_weight`. If the loss or the
    gradient is not finite, nothing is updated. At the end, `Branch.after_step` updates values without gradients.

    Args:
        batch: the batch of all ranks, possibly in CPU memory; each rank copies its part to the device of `precision`.
        lr_scale: share of the peak learning rates.
        chunked: compute the logits in chunks.
        processes: ranks that share each microbatch; results are sums over them.
        parts: `local_parts` of the batch, if they were made before.
    """
    passes = _Passes(
        model,
        batch,
        precision,
        processes,
        parts=local_parts(batch, grad_accum_steps, processes) if parts is None else parts,
        loss_of=_chunked_loss if chunked else _whole_loss,
        second_weight=second_weight,
        settings={"z_loss": z_loss, "label_smoothing": label_smoothing},
    )
    processes.backward(model, passes.parts, passes)
    processes.bring_gradients()
    precision.unscale(optimizers.values())
    # Faster than a walk through the model.
    groups = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
    parameters = [parameter for group in groups for parameter in group["params"]]
    norm = clip_gradients(parameters, max_grad_norm, processes.norm)
    # A read waits for a GPU, which meanwhile computes the update if the update can skip itself.
    updates_first = _can_skip(optimizers, precision, processes)
    if updates_first:
        _update(optimizers, precision, lr_scale, skip=passes.not_finite(norm))
    loss, z_loss, second_loss, auxiliary, grad_norm = passes.read(norm)
    # A loss scale handles overflows itself.
    finite = math.isfinite(loss) and (math.isfinite(grad_norm) or precision.scales)
    if finite and not updates_first:
        _update(optimizers, precision, lr_scale)
    _finish_step(model, optimizers, processes, updated=finite)
    return StepResult(loss, z_loss, grad_norm, finite, auxiliary, second_loss)


def _can_skip(
    optimizers: Mapping[str, torch.optim.Optimizer], precision: Precision, processes: Processes
) -> bool:
    """True if updates can skip themselves on the device, and no other rank has a say."""
    fused = all(isinstance(o, AdamW) and o.defaults["fused"] for o in optimizers.values())
    alone = processes.layout.size == 1
    return fused and alone and not (precision.scales or precision.device.type == "cpu")


def _update(
    optimizers: Mapping[str, torch.optim.Optimizer],
    precision: Precision,
    lr_scale: float,
    *,
    skip: Float[Tensor, ""] | None = None,
) -> None:
    """Update all parameters; if `skip` is 1, fused optimizers change nothing."""
    set_learning_rates(optimizers, lr_scale)
    for optimizer in optimizers.values():
        if skip is not None:
            optimizer.found_inf = skip  # type: ignore[attr-defined]
        precision.step(optimizer)
    precision.update()


def _finish_step(
    model: nn.Module,
    optimizers: Mapping[str, torch.optim.Optimizer],
    processes: Processes,
    *,
    updated: bool,
) -> None:
    """Update values without gradients, and drop the gradients."""
    branches = [module for module in model.modules() if isinstance(module, Branch)]
    processes.add_up_counts(branches)
    for branch in branches:
        branch.after_step(updated=updated)
    for optimizer in optimizers.values():
        optimizer.zero_grad(set_to_none=True)
    processes.drop_gradients()


class _Passes(Passes):
    """Forward passes over a rank's part of the microbatches, and their losses."""

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        precision: Precision,
        processes: Processes,
        *,
        parts: Sequence[Batch],
        loss_of: Callable[..., tuple[Loss, Output]],
        second_weight: float,
        settings: Mapping[str, float],
    ) -> None:
        self.model, self.batch, self.precision, self.processes = model, batch, precision, processes
        self.loss_of, self.second_weight, self.settings = loss_of, second_weight, settings
        self.parts = [to_device(part, precision.device) for part in parts]
        self.num_valid = valid_targets(batch)
        self.num_cases = second_cases(batch)
        self._auxiliary_names = aux_loss_names(model)
        self._found: dict[str, list[tuple[Tensor, int]]] = defaultdict(list)
        """Sums and divisors of each microbatch, by loss."""

    def loss(self, part: Batch) -> Tensor:
        part_loss, out = self.loss_of(
            self.model, part, self.precision, num_valid=self.num_valid, **self.settings
        )
        self._found["loss"].append((part_loss.nll_sum, self.num_valid))
        self._found["z_loss"].append((part_loss.z_term, 1))
        total = part_loss.total + self._auxiliary(part)
        if self.num_cases:
            own = second_answers(out, part)[0].sum() / self.num_cases
            total = total + self.second_weight * own
            self._found["second_loss"].append((own.detach(), 1))
        return self.precision.scaled(total)

    def hidden(self, part: Batch) -> tuple[Tensor, Tensor]:
        with self.precision.autocast():
            hidden = cast(Decoder, self.model).hidden(**part.inputs.given())
        return hidden, self._auxiliary(part)

    def _auxiliary(self, part: Batch) -> Tensor:
        """Return the sum of the last forward pass's auxiliary losses, by the microbatch's share of the targets."""
        share = part.targets.numel() / self.batch.targets.numel()
        total = torch.zeros(())
        for name, loss in pop_aux_losses(self.model, self.processes.mean).items():
            self._found[name].append((loss.detach() * share, 1))
            total = total + loss * share
        return total

    def not_finite(self, norm: Tensor) -> Float[Tensor, ""]:
        """Return 1 on the device if the loss or the gradient norm is not finite, else 0."""
        numbers = torch.stack([norm, *(x for x, _ in self._found["loss"])])
        return (~numbers.isfinite()).any().float()

    def read(self, norm: Tensor) -> tuple[float, float, float | None, dict[str, float], float]:
        """Return the losses, summed over microbatches and ranks, and the norm, by one copy from the device."""
        names = ("loss", "z_loss", "second_loss", *self._auxiliary_names)
        terms = [(name, x, by) for name in names for x, by in self._found.get(name, ())]
        *numbers, grad_norm = torch.stack([*(x for _, x, _ in terms), norm]).tolist()
        sums = dict.fromkeys(names, 0.0)
        for (name, _, by), number in zip(terms, numbers, strict=True):
            sums[name] += number / by
        loss, z_loss, second, *auxiliary = self.processes.sums([*sums.values()])
        by_name = {n: x for n, x in zip(self._auxiliary_names, auxiliary, strict=True) if x}
        return loss, z_loss, second if self.num_cases else None, by_name, grad_norm


def local_parts(batch: Batch, num_parts: int, processes: Processes) -> list[Batch]:
    """Return a rank's sequences of each microbatch; it copies no others to its device."""
    return [processes.rows(part) for part in batch.split(num_parts)]


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return a batch of arrays or tensors as tensors on a device."""
    return batch.map(lambda array: torch.as_tensor(array).to(device, non_blocking=True))


def valid_targets(batch: Batch) -> int:
    """Return the number of valid targets of a batch, at least 1."""
    return max(1, int((batch.targets != IGNORE).sum()))


def second_cases(batch: Batch) -> int:
    """Return the number of cases of the second task: sequences, or tokens that may be replaced; 0 without one."""
    if batch.sequence_targets is not None:
        return len(batch.sequence_targets)
    if batch.inputs.draws is None:
        return 0
    real = batch.inputs.padding_mask
    return batch.targets.numel() if real is None else int(real.sum())


def second_answers(
    out: Output, batch: Batch
) -> tuple[Float[Tensor, " cases"], Bool[Tensor, " cases"]]:
    """Return -ln p of each case of the second task, in float32 or wider, and if its answer is right.

    A case is the label of a sequence, or for each unpadded token, if it was replaced.
    """
    if batch.sequence_targets is not None:
        judged = out.sequence_logits
        assert judged is not None, "the rules of a run require a sequence head"
        nats = sequence_nats(judged, batch.sequence_targets)
        return nats, judged.argmax(-1) == batch.sequence_targets
    assert out.replaced_logits is not None, "the rules of a run require a generator"
    assert out.read is not None, "an output has the tokens that it judges"
    real = batch.inputs.padding_mask

    def of_real(x: Tensor) -> Tensor:
        return x.flatten() if real is None else x[real]  # [tokens]

    text = torch.where(batch.targets == IGNORE, batch.inputs.tokens, batch.targets)
    replaced, logits = of_real(out.read.ne(text)), _widened(of_real(out.replaced_logits))
    nats = F.binary_cross_entropy_with_logits(logits, replaced.to(logits.dtype), reduction="none")
    return nats, (logits > 0) == replaced


def sequence_nats(
    logits: Float[Tensor, "batch classes"], targets: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Return -ln p of each sequence's label, in float32 or wider."""
    return F.cross_entropy(_widened(logits), targets, reduction="none")


def _widened(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _whole_loss(
    model: Any, part: Batch, precision: Precision, **settings: Any
) -> tuple[Loss, Output]:
    """Return the loss of the tokens, and the output."""
    head: nn.Module = model.head
    if isinstance(head, Head) and head.vocab is not None:
        return _chunked_loss(model, part, precision, whole=True, **settings)
    with precision.autocast():
        out = model(**part.inputs.given())
    return cross_entropy(out.logits, part.targets, **settings), out


def _chunked_loss(
    model: Any,
    part: Batch,
    precision: Precision,
    *,
    label_smoothing: float,
    **settings: Any,
) -> tuple[Loss, Output]:
    """Return the loss of the tokens, and an output with sequence logits only."""
    with precision.autocast():
        hidden = model.hidden(**part.inputs.given())
        judged = Output(hidden[..., :0], model.sequence_logits(hidden, part.inputs.padding_mask))
        loss_of: Callable[..., Loss] = linear_cross_entropy
        # The fused kernel cannot return the loss with and without label smoothing.
        if isinstance(model.head, FusedHead) and not label_smoothing:
            loss_of = fused_cross_entropy
        else:
            settings["label_smoothing"] = label_smoothing
        return loss_of(hidden, model.head, part.targets, **settings), judged
