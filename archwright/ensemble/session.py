"""Runs of one shape trained as one: a pass computes the gradients of all, and each then goes its own way."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from archwright.data.inputs import Batch
from archwright.ensemble.stack import Stack, why_not_ensembled
from archwright.losses import cross_entropy, linear_cross_entropy
from archwright.model.language_model import LanguageModel
from archwright.spec.run_spec import RunSpec
from archwright.training.session import Session, median_step
from archwright.training.step import LossStats, to_device, valid_targets


class Together:
    """Sessions in one stack; `gradients` computes those of all for the step at which they stand.

    Updates, clipping, rates and losses stay those of each session, whose model is what it is alone: its
    weights are views into the stack's. So no run depends on what becomes of another.

    Raises:
        ValueError: sessions that `reason_alone` names a reason for.
    """

    def __init__(self, sessions: Sequence[Session]) -> None:
        if why := reason_alone(sessions[0].run, sessions[0].model):
            raise ValueError(why)
        self.sessions = list(sessions)
        self.stack = Stack([session.model for session in sessions])

    def gradients(self, step: int) -> list[LossStats]:
        """Give the parameters of all models their gradients for the batch of a step; return what was seen."""
        first = self.sessions[0]
        batches = [to_device(s.batches.at(step), first.device) for s in self.sessions]
        with first.precision.autocast():
            given = [batch.inputs.given() for batch in batches]
            # The inputs of all runs as those of one batch.
            hidden = self.stack(**{name: torch.cat([g[name] for g in given]) for name in given[0]})
        rows = [part.requires_grad_() for part in hidden.detach().chunk(len(batches))]
        seen = [
            _head_gradients(session, run_rows, batch)
            for session, run_rows, batch in zip(self.sessions, rows, batches, strict=True)
        ]
        found = [run_rows.grad for run_rows in rows if run_rows.grad is not None]
        self._hand_out(hidden, torch.cat(found))
        return seen

    def time_step(self, seconds: float) -> float:
        """Return the median seconds of a step of all runs, over about so many seconds; the weights are then
        of no use."""
        steps = itertools.count()

        def step() -> None:
            for session, seen in zip(self.sessions, self.gradients(next(steps)), strict=True):
                session.apply_gradients(seen)

        return median_step(step, seconds)

    def _hand_out(self, hidden: Tensor, gradient: Tensor) -> None:
        """Give each model its share of the stack's gradients; of a tied table, beside the head's."""
        parameters = self.stack.by_name()
        found = torch.autograd.grad(hidden, list(parameters.values()), gradient)
        for name, stacked in zip(parameters, found, strict=True):
            # An optimizer's fused kernel takes for granted that a gradient lies as its parameter does.
            for session, own in zip(self.sessions, stacked.contiguous(), strict=True):
                parameter = session.model.get_parameter(name)
                parameter.grad = own if parameter.grad is None else parameter.grad.add_(own)


def reason_alone(run: RunSpec, model: LanguageModel) -> str:
    """Return why a run cannot be trained in a stack, in a sentence; empty where it can."""
    if run.machine.device == "cuda":
        return "only runs on a CPU are stacked"
    if run.machine.compile == "block":
        return "compiled layers are not stacked"
    if run.grad_accum_steps > 1:
        return "a batch that is cut into parts is too large to gain from a stack"
    if run.probes.every or run.loggers:
        return "probes and loggers look at a run alone"
    if run.data.pairs:
        return "batches of pairs are of several lengths"
    if _drops(run.model.model_dump()):
        return "dropout would draw other random numbers than alone"
    return why_not_ensembled(model)


def _drops(values: Any) -> bool:
    """Tell whether anything in a spec drops out."""
    if isinstance(values, dict):
        return any((key == "dropout" and v) or _drops(v) for key, v in values.items())
    return isinstance(values, (list, tuple)) and any(map(_drops, values))


def _head_gradients(session: Session, hidden: Tensor, batch: Batch) -> LossStats:
    """Compute a run's head, loss, and their gradients, as a step alone does."""
    num_valid = valid_targets(batch)
    run, head = session.run, session.model.head
    terms: dict[str, Any] = {"z_loss": run.z_loss, "label_smoothing": run.label_smoothing}
    if run.machine.loss == "chunked":
        with session.precision.autocast():
            loss = linear_cross_entropy(hidden, head, batch.targets, num_valid=num_valid, **terms)
    else:
        with session.precision.autocast():
            logits = head(hidden)
        loss = cross_entropy(logits, batch.targets, num_valid=num_valid, **terms)
    loss.total.backward()
    return LossStats(loss.nll_sum.item() / num_valid, loss.z_term.item())
