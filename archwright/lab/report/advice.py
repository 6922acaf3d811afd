"""Advice on a variant that is inconclusive, in words that can be typed."""

import math
from dataclasses import replace

import numpy as np

from archwright.format import duration, short
from archwright.lab.design.command_line import Command
from archwright.lab.design.plan import LEAST_STEPS, Plan
from archwright.lab.design.planner import time_budget
from archwright.lab.design.scaling import SIZES, shape
from archwright.lab.design.variants import sized_by_user
from archwright.lab.procedure.constants import ALPHA
from archwright.lab.procedure.looks import Looks
from archwright.lab.procedure.statistics import SharedError, half_width
from archwright.lab.procedure.verdict import DIVERGED, is_unlearnt
from archwright.lab.results import Effect
from archwright.lab.running.scheduler import Execution
from archwright.spec.budget import Budget

LONGER = 3
"""Factor of advised steps over insufficient ones."""
LOWER = 10
"""Divisor of the learning rate if all runs diverged."""
MANY = 100
"""Maximum number of advised seeds."""
ROUNDS = 3
"""Iterations for the number of seeds, as the level depends on that number."""


def advice(effect: Effect, execution: Execution, command: Command) -> str:
    """Return advice for an inconclusive variant, with a command; "" if there is none."""
    study, now = execution.plan.study, execution.standing()
    if any(DIVERGED in caveat for caveat in effect.caveats):
        return _lower_rate(effect, execution, command)
    if is_unlearnt(effect):
        return _longer(execution, command)
    if edges := [
        n
        for n, s in now.sweeps.items()
        if s.at_boundary and n in (effect.variant, next(iter(execution.plan.arms)))
    ]:
        return _other_rate(edges[0], execution, command)
    if effect.caveats:
        return ""
    if execution.plan.steps < LEAST_STEPS:
        return _longer(execution, command)
    assert now.looks
    superior = sum(decision.outcome == "superior" for decision in now.decisions.values())
    more = more_seeds(effect, now.looks, ALPHA / max(1, len(study.variants) - superior))
    if not more:
        return _beyond_seeds(effect, execution, command)
    baseline, *variants = execution.plan.arms
    trained = [baseline, *(name for name in variants if name not in now.decisions)]
    seconds = more * sum(map(execution.run_seconds, trained)) / execution.plan.workers
    seeds = f"{more} more seed{'s' * (more > 1)}"
    added = f"{command} --add-seeds {more}"
    return f"too close to call, about {seeds} would tell, {duration(seconds)}: {added}"


def more_seeds(effect: Effect, looks: Looks, alpha: float) -> int:
    """Return the additional pairs until a decision, at constant mean and deviation.

    A decision is an interval without 0 or within the margin. The result is 0 if more than MANY pairs are needed.

    Additional pairs spend the remaining error, so their interval is wider. The standard errors that all pairs
    share do not shrink.

    Args:
        alpha: Remaining error rate of this variant.
    """
    if len(effect.differences) < 2:
        return 0
    ends = looks.ends or (looks.seeds,)
    added = more = len(effect.differences)
    for _ in range(ROUNDS):
        later = replace(looks, ends=(*ends, ends[-1] + added))
        more = _enough(effect, later.levels(alpha)[-1], later.levels(2 * ALPHA)[-1])
        if more <= added:
            break
        added = more  # the more are added, the wider the interval
    return more


def _enough(effect: Effect, superior: float, equivalent: float) -> int:
    """Return the additional pairs until a decision at these levels; 0: more than MANY."""
    number, mean = len(effect.differences), abs(effect.mean)
    variance = float(np.var(effect.differences, ddof=1))
    shared = SharedError(effect.text_error, effect.placing_error)
    for more in range(1, MANY + 1):
        own = math.sqrt(variance / (number + more))
        half, inside = (
            half_width(own, number + more, level, shared) for level in (superior, equivalent)
        )
        if mean > half or mean + inside < effect.margin:
            return more
    return 0


def _beyond_seeds(effect: Effect, execution: Execution, command: Command) -> str:
    """Name a halved learning rate, or advise more held-out text if its sampling error dominates."""
    for name in (effect.variant, next(iter(execution.plan.arms))):
        if any(spikes.halved for spikes in execution.standing().spikes.get(name, ())):
            cost = f"at a cost that {MANY} more seeds would not tell"
            return f"the learning rate of {name} was halved after spikes, {cost}"
    least = float(np.std(effect.differences)) / math.sqrt(len(effect.differences) + MANY)
    if effect.text_error <= max(least, effect.placing_error):
        return f"too close to call, {MANY} more seeds would not tell either"
    asked, there = execution.plan.study.evaluation_tokens, execution.plan.evaluation_tokens
    more = "a longer text" if there < asked else command.again(evaluation_tokens=4 * asked)
    return (
        f"too close to call on {there:,} held-out tokens, whatever the seeds; more may tell: {more}"
    )


def _lower_rate(effect: Effect, execution: Execution, command: Command) -> str:
    """Advise a lower learning rate after divergence."""
    plan = execution.plan
    key = plan.baseline.run.optimizer.learning_rates[0]
    diverged = {cell.variant for cell, run in execution.results.items() if run.diverged}
    lowest = min(
        plan.lr(cell.variant, cell.k)
        for cell in execution.results
        if cell.variant in (diverged & {effect.variant, plan.baseline.name})
    )
    tuned = "leave out --no-tune-lr, or " * (not plan.study.tune_lr)
    lower = f"optimizer.{key}={short(float(f'{lowest / LOWER:.2g}'))}"
    alone = effect.variant if plan.baseline.name not in diverged else ""
    return f"{tuned}start from a lower learning rate: {command.again_from(alone, lower)}"


def _longer(execution: Execution, command: Command) -> str:
    """Advise a budget with enough steps."""
    plan = execution.plan
    steps = max(LEAST_STEPS, LONGER * plan.steps)
    times = steps / plan.steps
    if seconds := plan.study.budget.seconds:
        budget = time_budget(times * seconds)
    elif plan.study.budget.unit == "steps":
        budget = f"{steps}steps"
    else:
        budget = f"{math.ceil(times * plan.tokens_per_run / 1e6)}Mtokens"
    again = command.again(budget=Budget(budget), size=same_size(plan))
    return f"{plan.steps:,} steps were too few, try about {steps:,}: {again}"


def same_size(plan: Plan) -> str:
    """Return the current size, as a longer time budget would select larger models."""
    study, model = plan.study, plan.baseline.run.model
    if study.size != "auto" or sized_by_user(study) or not study.budget.seconds:
        return study.size

    asked = (model.dim, model.num_layers)
    return f"{max(SIZES, key=lambda size: shape(size) == asked) / 1e6:g}M"


def _other_rate(name: str, execution: Execution, command: Command) -> str:
    """Advise a learning rate at the edge of the current grid."""
    window = execution.standing().sweeps[name].window
    losses = {
        k: loss.loss
        for (variant, _, k, _), loss in execution.results.items()
        if variant == name and k in window
    }
    best = min(losses, key=losses.__getitem__, default=window[0])
    lr = execution.plan.lr(name, best)
    key = execution.plan.arms[name].run.optimizer.learning_rates[0]
    again = command.again_from(name, f"optimizer.{key}={short(lr)}")
    return f"search on from there: {again}"
