"""Drift of the best learning rate with a model's width."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from scipy import stats

from archwright.format import count, listed, short
from archwright.lab.design.variants import at_width, label
from archwright.lab.results import BestRate, Drift, Replicate, Variant
from archwright.spec.study_spec import StudySpec

PLACING = 0.25
"""Error of a parabola's vertex in steps between rates, from a cubic term that three losses do not show; its cost in
loss is `archwright.lab.procedure.constants.PLACING`."""

LEVEL = 0.95


def drifts(
    replicates: Sequence[Replicate],
    study: StudySpec,
    steps: Mapping[str, float],
    plateau: Mapping[str, float],
) -> list[Drift]:
    """Return the drift of the best learning rate of the baseline and each variant.

    The best rate of an arm (a variant at a width) is exp(x), with x the mean of ln(rate) over the vertices of its n
    seeds. The 95 % interval of x is x ± e, e² = t² s² / n + (PLACING d)², with d the step between the logarithms of
    rates, s² the variance of vertices within arms, pooled over all arms, and t the quantile of Student's distribution
    with the sum of (n - 1) degrees of freedom. A drift is exp of the difference of two x; its e² is the sum of theirs.
    If no arm has two seeds, intervals are infinite.

    Args:
        steps: d by arm.
        plateau: Loss by arm above which its best rate is meaningless: only token frequencies were learnt.
    """
    by_arm = {arm: [r for r in replicates if r.variant == arm] for arm in steps}
    logs = {arm: [math.log(r.lr) for r in by_arm[arm]] for arm in steps}
    degrees = sum(max(0, len(xs) - 1) for xs in logs.values())
    noise = math.inf
    if degrees:
        squares = sum((x - fmean(xs)) ** 2 for xs in logs.values() for x in xs)
        noise = float(stats.t.ppf((1 + LEVEL) / 2, degrees)) * math.sqrt(squares / degrees)
    results = []
    for name in (label(study.baseline), *study.variants):
        arms = {width: at_width(name, width) for width in study.widths}
        errors = {
            width: math.hypot(noise / math.sqrt(len(logs[arm])), PLACING * steps[arm])
            for width, arm in arms.items()
            if logs.get(arm)
        }
        rates = [
            _best_rate(width, by_arm[arms[width]], error, plateau.get(arms[width], math.inf))
            for width, error in errors.items()
        ]
        if rates:
            moved = math.log(rates[-1].lr / rates[0].lr)
            error = math.hypot(errors[rates[0].width], errors[rates[-1].width])
            low, high = math.exp(moved - error), math.exp(moved + error)
            results.append(Drift(name, tuple(rates), math.exp(moved), low, high))
    return results


def verdict(
    found: Sequence[Drift], variants: Sequence[Variant], *, tokens: float, text: str, device: str
) -> str:
    """Describe drifts in a sentence, with sizes, tokens per run, text and device."""
    sizes = sorted(variant.non_embedding for variant in variants)
    scale = f"at {count(sizes[0])} to {count(sizes[-1])} parameters and {count(tokens)} tokens of {text} on {device}"
    known = [drift for drift in found if len(drift.rates) > 1]
    if not known:
        return f"No variant has ended at two widths yet, {scale}."
    first, *_, last = known[0].rates
    claims = [f"of {drift.name} {_claim(drift)}" for drift in known]
    return f"From width {first.width} to {last.width}, the best learning rate {listed(claims)}, {scale}."


def headline(found: Sequence[Drift], words: int) -> str:
    """Describe drifts without numbers, with names if at most `words` words suffice."""
    known = [drift for drift in found if len(drift.rates) > 1]
    if not known:
        return "No variant has ended at two widths yet"
    moves = {drift.name: _move(drift) for drift in known}
    named = ", ".join(f"of {name} {move}" for name, move in moves.items())
    text = f"With width, the best learning rate {named}"
    if len(text.split()) <= words:
        return text
    counts = ", ".join(f"{number} {move}" for move, number in Counter(moves.values()).items())
    return f"Best learning rates with width: {counts}"


def _move(drift: Drift) -> str:
    """Describe a drift in one word."""
    ends = (drift.rates[0], drift.rates[-1])
    if any(rate.at_boundary or not rate.learnt for rate in ends) or not math.isfinite(drift.high):
        return "unknown"
    if drift.low > 1:
        return "rises"
    return "falls" if drift.high < 1 else "holds"


def rates_words(drift: Drift) -> str:
    """Return a variant's best rates: `modern: 2.1e-2 (1.7e-2 to 2.6e-2) at dim 32, ...`."""
    rates = (f"{short(r.lr)} ({interval_words(r)}) at dim {r.width}" for r in drift.rates)
    return f"{drift.name}: {', '.join(rates)}"


def interval_words(rate: BestRate) -> str:
    """Return the interval of a best rate, or "one seed"."""
    if not math.isfinite(rate.high):
        return "one seed"
    return f"{short(rate.low)} to {short(rate.high)}"


def _best_rate(width: int, seeds: Sequence[Replicate], error: float, plateau: float) -> BestRate:
    lr = math.exp(fmean(math.log(seed.lr) for seed in seeds))
    low, high = lr * math.exp(-error), lr * math.exp(error)
    loss, number = fmean(seed.loss for seed in seeds), len(seeds)
    at_boundary = sum(seed.at_boundary for seed in seeds) > number / 2
    return BestRate(width, lr, low, high, loss, number, at_boundary, learnt=loss < plateau)


def _widths(which: list[str]) -> str:
    return f"width{'s' if len(which) > 1 else ''} {listed(which)}"


def _claim(drift: Drift) -> str:
    """Describe a drift: `falls by a factor of 3.1 (95 % interval 2.2 to 4.3)`."""
    ends = (drift.rates[0], drift.rates[-1])
    if stuck := [str(rate.width) for rate in ends if not rate.learnt]:
        return f"is not known, as at {_widths(stuck)} it learnt hardly more than how often tokens occur"
    if edges := [str(rate.width) for rate in ends if rate.at_boundary]:
        return f"is not known, as at {_widths(edges)} it lies at the edge of the grid"
    if not math.isfinite(drift.high):
        return f"moves by a factor of {drift.factor:.2g}, by one seed"
    words = "moves by less than its error, a factor of"
    factors = (drift.factor, drift.low, drift.high)
    if drift.low > 1:
        words = "rises by a factor of"
    elif drift.high < 1:
        words, factors = "falls by a factor of", (1 / drift.factor, 1 / drift.high, 1 / drift.low)
    factor, low, high = (f"{value:.2g}" for value in factors)
    return f"{words} {factor} (95 % interval {low} to {high})"
