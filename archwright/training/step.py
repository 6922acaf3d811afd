"""One step of training."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
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
from archwright.optim import clip_gradients, set_learning_rates
from archwright.parts.branch import Branch
from archwright.scale.processes import ALONE, Passes, Processes


@dataclass(frozen=True)
class StepResult:
    """Results of a step: means in nats per token, and the gradient's norm before clipping."""

    loss: float
    z_loss: float
    grad_norm: float
    finite: bool
    """Whether loss and gradient are numbers; if not, nothing was updated."""
    auxiliary: Mapping[str, float] = field(default_factory=dict)
    """Auxiliary losses by name, such as router_loss; see `Branch.auxiliary`."""
    second_loss: float | None = None
    """Of what is learned beside tokens, in nats per row or per token; None where that is nothing."""


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
) -> StepResult:
    """Forward and backward over the parts of a batch, clip, update: `lr_scale` is the share of the peaks.

    The summed loss is divided by the number of valid targets of the whole batch, so that the parts'
    gradients add up to the batch's. What routers ask for besides is computed on each part by itself, and
    counts by its share of the rows. Where rows are judged as a whole, or tokens as replaced or not, the
    mean of that loss is added, times `second_weight`. A loss or a gradient that is not finite updates nothing.
    `chunked` logits never exist all at once. Branches then move what follows no gradient by `after_step`, by what they
    saw in all parts. Of each part, several `processes` take
    their rows: what is divided by is the whole batch's, and all that is returned are sums over them. `batch` may be in
    the memory of the CPU: what is computed is copied to the device of `precision`.
    """
    passes = _Passes(
        model,
        batch,
        precision,
        processes,
        num_parts=grad_accum_steps,
        loss_of=_chunked_loss if chunked else _whole_loss,
        second_weight=second_weight,
        settings={"z_loss": z_loss, "label_smoothing": label_smoothing},
    )
    processes.backward(model, passes.parts, passes)
    loss, z_loss, second_loss, auxiliary = passes.means()
    processes.bring_gradients()
    precision.unscale(optimizers.values())
    # Asking the optimizers needs no walk through the model.
    groups = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
    parameters = [parameter for group in groups for parameter in group["params"]]
    grad_norm = clip_gradients(parameters, max_grad_norm, processes.norm).item()
    # A loss scale mends its own overflows.
    finite = math.isfinite(loss) and (math.isfinite(grad_norm) or precision.scales)
    if finite:
        set_learning_rates(optimizers, lr_scale)
        for optimizer in optimizers.values():
            precision.step(optimizer)
        precision.update()
    _finish_step(model, optimizers, processes, updated=finite)
    return StepResult(loss, z_loss, grad_norm, finite, auxiliary, second_loss)


def _finish_step(
    model: nn.Module,
    optimizers: Mapping[str, torch.optim.Optimizer],
    processes: Processes,
    *,
    updated: bool,
) -> None:
    """Let branches move what follows no gradient, and drop the gradients."""
    branches = [module for module in model.modules() if isinstance(module, Branch)]
    processes.add_up_counts(branches)
    for branch in branches:
        branch.after_step(updated=updated)
    for optimizer in optimizers.values():
        optimizer.zero_grad(set_to_none=True)
    processes.drop_gradients()


class _Passes(Passes):
    """Forward passes over the parts of a batch, of each what is this process's, and the numbers that they give."""

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        precision: Precision,
        processes: Processes,
        *,
        num_parts: int,
        loss_of: Callable[..., tuple[Loss, Output]],
        second_weight: float,
        settings: Mapping[str, float],
    ) -> None:
        self.model, self.batch, self.precision, self.processes = model, batch, precision, processes
        self.loss_of, self.second_weight, self.settings = loss_of, second_weight, settings
        # Only what is this process's goes to its device.
        own = (processes.rows(part) for part in batch.split(num_parts))
        self.parts = [to_device(part, precision.device) for part in own]
        self.num_valid = valid_targets(batch)
        self.num_cases = second_cases(batch)
        self._auxiliary_names = aux_loss_names(model)
        self._found: dict[str, list[tuple[Tensor, int]]] = defaultdict(list)
        """Of each part, numbers and what they are divided by."""

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
        """Return the sum of the auxiliary losses of the last forward pass, by the part's share of the rows."""
        share = part.targets.numel() / self.batch.targets.numel()
        total = torch.zeros(())
        for name, loss in pop_aux_losses(self.model, self.processes.mean).items():
            self._found[name].append((loss.detach() * share, 1))
            total = total + loss * share
        return total

    def means(self) -> tuple[float, float, float | None, dict[str, float]]:
        """Return the losses, summed over parts and ranks; on a GPU this waits for the backward pass."""
        names = ("loss", "z_loss", "second_loss", *self._auxiliary_names)
        found = [sum(x.item() / by for x, by in self._found.get(name, ())) for name in names]
        loss, z_loss, second, *auxiliary = self.processes.sums(found)
        by_name = {n: x for n, x in zip(self._auxiliary_names, auxiliary, strict=True) if x}
        return loss, z_loss, second if self.num_cases else None, by_name


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return a batch of arrays, or of tensors, as tensors on a device."""
    return batch.map(lambda array: torch.as_tensor(array).to(device, non_blocking=True))


def valid_targets(batch: Batch) -> int:
    """Return what a batch's summed loss is divided by, at least 1."""
    return max(1, int((batch.targets != IGNORE).sum()))


def second_cases(batch: Batch) -> int:
    """Return of how many cases something is learned beside tokens: rows, or tokens that may be replaced; 0 where that
    is nothing."""
    if batch.sequence_targets is not None:
        return len(batch.sequence_targets)
    if batch.inputs.draws is None:
        return 0
    real = batch.inputs.padding_mask
    return batch.targets.numel() if real is None else int(real.sum())


def second_answers(
    out: Output, batch: Batch
) -> tuple[Float[Tensor, " cases"], Bool[Tensor, " cases"]]:
    """Return -ln p of each case of what is learned beside tokens, in float32 or wider, and whether the answer is right:
    what each row is as a whole, or whether each real token is another than that of the text."""
    if batch.sequence_targets is not None:
        judged = out.sequence_logits
        assert judged is not None, "the rules of a run ask for a head of rows"
        nats = sequence_nats(judged, batch.sequence_targets)
        return nats, judged.argmax(-1) == batch.sequence_targets
    assert out.replaced_logits is not None, "the rules of a run ask for a generator"
    assert out.read is not None, "an answer names the tokens that it judges"
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
    """Return -ln p of what each row is as a whole, in float32 or wider."""
    return F.cross_entropy(_widened(logits), targets, reduction="none")


def _widened(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _whole_loss(
    model: nn.Module, part: Batch, precision: Precision, **settings: Any
) -> tuple[Loss, Output]:
    """Return the loss of tokens, and the logits."""
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
    """Return the loss of tokens, and the logits of rows where the model judges them; those of tokens are none."""
    with precision.autocast():
        hidden = model.hidden(**part.inputs.given())
        judged = Output(hidden[..., :0], model.sequence_logits(hidden, part.inputs.padding_mask))
        loss_of: Callable[..., Loss] = linear_cross_entropy
        # The fused kernel does not say the loss without label smoothing beside that with it.
        if isinstance(model.head, FusedHead) and not label_smoothing:
            loss_of = fused_cross_entropy
        else:
            settings["label_smoothing"] = label_smoothing
        return loss_of(hidden, model.head, part.targets, **settings), judged
