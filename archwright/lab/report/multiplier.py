"""How much compute a difference of a study is worth."""

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from archwright.lab.design.plan import horizons
from archwright.lab.procedure.compute import drops, multiplier_in_tokens
from archwright.lab.procedure.statistics import t_interval
from archwright.lab.results import Effect, Horizon, Multiplier
from archwright.lab.running.scheduler import Execution


def multiplier_of(effect: Effect, execution: Execution) -> Multiplier | None:
    """Return how much compute a difference is worth, None if fewer than two pairs have shorter horizons."""
    plan = execution.plan
    shares, base, arm = horizons(plan.study), plan.baseline, plan.arms[effect.variant]
    curves, others = (execution.curves(name) for name in (effect.variant, base.name))
    seeds = [seed for seed in effect.seeds if seed in curves and seed in others]
    if not shares or len(seeds) < 2:
        return None
    variant, baseline = ([found[seed] for seed in seeds] for found in (curves, others))
    tokens, low, high = multiplier_in_tokens(
        effect.estimate, effect.interval, shares, drops(baseline), drops(variant)
    )
    ends = effect.mean, effect.interval.low, effect.interval.high, len(effect.seeds)
    differences = np.subtract(variant, baseline).T.tolist()
    return Multiplier(
        tokens=tokens,
        low=low,
        high=high,
        most=1 / shares[0],
        flops=base.counts.flops_per_token / arm.counts.flops_per_token,
        horizons=[
            *(
                horizon(plan.steps_of(share) * base.run.tokens_per_step, values)
                for share, values in zip(shares, differences, strict=False)
            ),
            Horizon(plan.tokens_per_run, *ends),
        ],
    )


def horizon(tokens: int, differences: Sequence[float]) -> Horizon:
    """Return the mean difference of some pairs at a horizon, with Student's interval."""
    found = t_interval(differences)
    return Horizon(tokens, fmean(differences), found.low, found.high, len(differences))
