"""Advice on a variant that is inconclusive, in words that can be typed."""

import math

from archwright.format import duration, short
from archwright.lab.results import Effect
from archwright.lab.scheduler import Execution
from archwright.lab.verdict import GUESSED, UNLEARNT, seeds_needed

LEAVES_PLATEAU = 500
"""Steps in which small models of all presets have left the plateau on which they know how often tokens occur."""
LONGER = 3
"""Times the steps that are advised where more than that were not enough."""
MANY = 100
"""Seeds beyond which nobody would wait for an answer."""


def advice(effect: Effect, execution: Execution) -> str:
    """Return what would decide a variant, or nothing where nobody knows."""
    study = execution.plan.study
    if any(words in caveat for caveat in effect.caveats for words in (UNLEARNT, GUESSED)):
        return _longer(execution)
    if edges := [
        n
        for n, s in execution.standing().sweeps.items()
        if s.at_boundary and n in (effect.variant, next(iter(execution.plan.arms)))
    ]:
        return _other_rate(edges[0], execution)
    if effect.caveats or not (needed := seeds_needed(effect)):
        return ""
    more = max(1, needed - len(effect.seeds))
    if needed > MANY:
        return f"too close to call, about {needed} seeds would tell"
    if study.procedure == "sweep":
        return f"about {needed} seeds would tell: --seeds {needed}"
    arms = (next(iter(execution.plan.arms)), effect.variant)
    seconds = more * sum(map(execution.run_seconds, arms)) / execution.plan.workers
    return f"too close to call, about {more} more seeds would tell, {duration(seconds)}: --add-seeds {more}"


def _longer(execution: Execution) -> str:
    """Say which budget gives the steps that it takes to learn more."""
    plan = execution.plan
    steps = max(LEAVES_PLATEAU, LONGER * plan.steps)
    times = steps / plan.steps
    if seconds := plan.study.budget.seconds:
        budget = f"{math.ceil(times * seconds / 60)}m"
    elif plan.study.budget.unit == "steps":
        budget = f"{steps}steps"
    else:
        budget = f"{math.ceil(times * plan.tokens_per_run / 1e6)}Mtokens"
    return f"{plan.steps:,} steps were too few, try about {steps:,}: --budget {budget}"


def _other_rate(name: str, execution: Execution) -> str:
    """Say from which learning rate to search on."""
    window = execution.standing().sweeps[name].window
    losses = {
        k: loss.loss
        for (variant, _, k, _), loss in execution.results.items()
        if variant == name and k in window
    }
    best = min(losses, key=losses.__getitem__, default=window[0])
    lr = execution.plan.lr(name, best)
    key = execution.plan.arms[name].run.optimizer.learning_rates[0]
    return f"search on from there with optimizer.{key}={short(lr)} for {name}"
