"""How much compute a difference of a study is worth."""

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from archwright.lab.design.plan import horizons
from archwright.lab.procedure.compute import drops, multiplier_in_tokens
from archwright.lab.procedure.statistics import t_interval
from archwright.lab.results import Effect, Horizon, Multiplier
from archwright.lab.running.scheduler import Execution

Curves = Mapping[int, Sequence[float]]
"""Losses of each seed, from the shortest horizon on."""


def multiplier_of(effect: Effect, execution: Execution) -> Multiplier | None:
    """Return the compute multiplier, None with fewer than two pairs at shorter horizons."""
    plan = execution.plan
    shares, base, arm = horizons(plan.study), plan.baseline, plan.arms[effect.variant]
    return multiplier(
        effect,
        shares,
        [plan.steps_of(base.name, share) * base.run.tokens_per_step for share in (*shares, 1.0)],
        execution.curves(base.name),
        execution.curves(effect.variant),
        base.counts.flops_per_token / arm.counts.flops_per_token,
    )


def multiplier(
    effect: Effect,
    shares: Sequence[float],
    lengths: Sequence[int],
    baseline: Curves,
    variant: Curves,
    flops: float,
) -> Multiplier | None:
    """Return the compute multiplier, None with fewer than two pairs at shorter horizons.

    Args:
        shares: Shares of the full horizon, the shortest first, without the full one.
        lengths: Tokens or steps of a run at each horizon, the whole one last.
        baseline: By seed, losses from the shortest horizon on.
        variant: The same of the variant.
        flops: Ratio of compute per token, baseline to variant.
    """
    seeds = [seed for seed in effect.seeds if seed in variant and seed in baseline]
    if not shares or len(seeds) < 2:
        return None
    own, others = ([curves[seed] for seed in seeds] for curves in (variant, baseline))
    tokens, low, high = multiplier_in_tokens(
        effect.estimate, effect.interval, shares, drops(others), drops(own)
    )
    *shorter, whole = lengths
    differences = np.subtract(own, others).T.tolist()
    at = [horizon(*pair) for pair in zip(shorter, differences, strict=False)]
    ends = Horizon(whole, effect.mean, effect.interval.low, effect.interval.high, len(effect.seeds))
    return Multiplier(tokens, low, high, 1 / shares[0], flops, [*at, ends])


def horizon(tokens: int, differences: Sequence[float]) -> Horizon:
    """Return the mean difference of some pairs at a horizon, with Student's interval."""
    found = t_interval(differences)
    return Horizon(tokens, fmean(differences), found.low, found.high, len(differences))
