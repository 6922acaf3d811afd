"""How much compute a variant's difference is worth, from runs of a share of the steps."""

import math
from collections.abc import Sequence
from statistics import median

import numpy as np

from archwright.lab.multiplier import drops, horizon, multiplier_in_tokens, rise_before
from archwright.lab.plan import horizons
from archwright.lab.results import Effect, Horizon, Multiplier, Replicate, compared_of
from archwright.lab.scheduler import Execution


def multiplier_of(
    effect: Effect, replicates: Sequence[Replicate], execution: Execution
) -> Multiplier | None:
    """Return how much compute a difference is worth, None where too few pairs have shorter horizons."""
    plan = execution.plan
    shares, names = horizons(plan.study), (plan.baseline.name, effect.variant)
    whole = {(r.variant, r.seed): r.loss for r in replicates}
    halved = execution.by_halves
    known = {
        (cell.variant, cell.seed, cell.share): execution.loss(run, halved)
        for cell, run in execution.shorter.items()
        if not (run.failed or run.diverged)
    }
    seeds = [s for s in effect.seeds if all((n, s, h) in known for n in names for h in shares)]
    if not shares or len(seeds) < 2:
        return None
    rows = {
        n: [[*(known[n, s, share] for share in shares), whole[n, s]] for s in seeds] for n in names
    }
    baseline, variant = (drops(rows[name]) for name in names)
    tokens, low, high = multiplier_in_tokens(
        effect.mean, effect.interval, shares, baseline, variant
    )
    base, arm = (plan.arms[name] for name in names)
    pace = {name: _tokens_per_second(name, execution) for name in names}
    differences = np.subtract(rows[effect.variant], rows[plan.baseline.name])
    return Multiplier(
        tokens=tokens,
        low=low,
        high=high,
        most=1 / shares[0],
        flops=base.counts.flops_per_token / arm.counts.flops_per_token,
        seconds=pace[effect.variant] / pace[plan.baseline.name],
        # In the time of the variant the baseline reads fewer tokens where it is slower.
        at_equal_seconds=effect.mean
        - rise_before(pace[plan.baseline.name] / pace[effect.variant], shares, baseline),
        horizons=[
            *(
                horizon(plan.steps_of(share) * base.run.tokens_per_step, differences[:, i].tolist())
                for i, share in enumerate(shares)
            ),
            Horizon(
                plan.tokens_per_run,
                effect.mean,
                effect.interval.low,
                effect.interval.high,
                len(effect.seeds),
            ),
        ],
    )


def _tokens_per_second(name: str, execution: Execution) -> float:
    """Return the median over a variant's runs, of the processor."""
    runs = [run for cell, run in execution.results.items() if cell.variant == name]
    speeds = [r.tokens_per_second for r in compared_of(runs, execution.plan.study)]
    return median([speed for speed in speeds if speed > 0] or [math.nan])
