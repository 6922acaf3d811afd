"""Verdict of a study, in numbers and sentences: each variant against the baseline, over paired seeds."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from archwright.format import count, listed, signed
from archwright.lab.procedure.constants import ALPHA
from archwright.lab.procedure.estimate import shrunken
from archwright.lab.procedure.looks import Decision, Looks
from archwright.lab.procedure.spikes import Spikes
from archwright.lab.procedure.statistics import SharedError, text_error
from archwright.lab.results import (
    NEAR,
    Effect,
    Interval,
    Multiplier,
    Outcome,
    Replicate,
    RunResult,
    Unit,
)
from archwright.spec.study_spec import StudySpec

BIGRAMS, GUESSING = "than a bigram model", "than guessing"
UNLEARNT = f"learnt no more {BIGRAMS}"
GUESSED = f"has no more answers right {GUESSING}"
DIVERGED = "diverged in all runs that are compared"
AT_EQUAL_TOKENS = " at equal tokens, not at equal compute"
SMALL = "by less than the margin"
AT_BOUNDARY = "the best learning rate of {} is at the edge of its grid"
LATER = "pairs that were trained after the decision have moved the interval"


BySeed = Mapping[int, Replicate]
"""Replicates of a variant by seed."""


def effects(
    replicates: Sequence[Replicate],
    study: StudySpec,
    baseline: str,
    *,
    decisions: Mapping[str, Decision],
    looks: Looks,
    runs: Sequence[RunResult] = (),
    edges: Collection[str] = (),
    learnt: Mapping[str, float] | None = None,
    unlearnt: Mapping[str, float] | None = None,
    unit: Unit = "nats per token",
    placing: Mapping[str, float] | None = None,
    slope: float | None = None,
    multiplier: Callable[[Effect], Multiplier | None] = lambda effect: None,
    advice: Callable[[Effect], str] = lambda effect: "",
) -> list[Effect]:
    """Compare each variant with the baseline over common seeds, in the study's order.

    Outcomes, by precedence:
        identical: both are the same runs.
        inconclusive: without a decision, or with caveats: fewer than two pairs, a learning rate at an end of its grid
            (`edges`), at least as many pairs lost to failed `runs` as left, a loss above `learnt` (for a task, both
            losses), or pairs after the decision that change the sign.
        better, worse, equivalent: the decision of the looks.

    Args:
        looks: All looks, at which intervals hold together.
        learnt: Loss of bigrams or guessing, below which a variant has learnt. Default: all have.
        unlearnt: Lowest tuning loss of variants above `learnt`, which were not trained further.
        placing: Standard error of each variant's loss from tuning, in nats.
        slope: Fall of the baseline's loss per e-fold of compute.
        multiplier: Returns the compute equivalent of a difference.
        advice: Returns the next step for an inconclusive variant.
    """
    names = dict.fromkeys([*study.variants, *(r.variant for r in replicates)])
    names.pop(baseline, None)
    by_seed = {n: {r.seed: r for r in replicates if r.variant == n} for n in [baseline, *names]}
    found = []
    for name in names:
        pair, decision = {n: by_seed[n] for n in (name, baseline)}, decisions.get(name)
        placed = math.hypot(*((placing or {}).get(n, 0.0) for n in pair))
        effect = replace(_measured(name, pair[name], pair[baseline], looks, placed), unit=unit)
        margin = margin_of(study, effect.baseline_loss, slope)
        effect = replace(effect, margin=margin, slope=math.nan if slope is None else slope)
        stopped = not (unlearnt or {}).keys().isdisjoint(pair)
        few = {} if stopped else {0: ["no seed has both"], 1: ["only one seed has both"]}
        caveats = [
            *few.get(len(effect.seeds), []),
            *(AT_BOUNDARY.format(n) for n in pair if n in edges),
            *_failures(effect, runs, list(pair), study),
            *_turned(effect, decision),
        ]
        diverged = _diverged_alone(pair, learnt or {}, study)
        if not diverged:
            caveats += _unlearnt(pair, learnt or {}, unit, unlearnt or {})
        effect = replace(effect, caveats=tuple(caveats), diverged=diverged)
        outcome: Outcome = "identical" if _are_one(*pair.values()) else _outcome(effect, decision)
        if decision and outcome in ("better", "worse"):
            shared = SharedError(effect.text_error, placed)
            effect = replace(effect, estimate=shrunken(effect.differences, decision, shared))
        effect = replace(effect, outcome=outcome)
        known = effect.has_numbers and outcome != "identical"
        effect = replace(effect, multiplier=multiplier(effect) if known else None)
        sentence = _claim(effect, baseline) + _remark(effect, advice, several=len(names) > 1)
        found.append(replace(effect, sentence=sentence + "."))
    return found


def margin_of(study: StudySpec, baseline_loss: float, slope: float | None) -> float:
    """Return a study's margin in the unit of the loss; NaN for compute without a slope."""
    if compute := study.margin_of_compute:
        return math.nan if slope is None else slope * math.log1p(compute)
    return (study.margin_of_loss or 0.0) * abs(baseline_loss)


def verdict(effects: Sequence[Effect], baseline: str, spikes: Sequence[str] = ()) -> str:
    """Return the sentences of effects and `spikes`, or of groups if there are many."""
    said = [effect.sentence for effect in effects] or [f"{baseline} was compared with nothing."]
    if len(effects) > FEW:
        groups = []
        for words in GROUPS:
            if members := [_member(effect) for effect in effects if group_of(effect) == words]:
                groups.append(f"{listed(members)} {'are' if len(members) > 1 else 'is'} {words}")
        said = [f"Against {baseline} in {effects[0].unit}, {', '.join(groups)}."]
    return " ".join([*said, *(f"{words}." for words in spikes)])


def scope(parameters: float, tokens: float, device: str, text: str = "") -> str:
    """Return the scale of a verdict in a sentence."""
    source = f" of {text}" if text else ""
    scale = f"{count(parameters)} non-embedding parameters and {count(tokens)} tokens{source}"
    return f"Measured at {scale} on {device}, and for this size and token budget only."


def spike_words(name: str, spiked: int, compared: int, lr: float, again: float | None) -> str:
    """Describe the spikes of a variant; `again` is the learning rate after halving."""
    runs = f"{spiked} of {compared} runs of {name} spiked at lr {lr:.2g}"
    return runs if again is None else f"{runs}; all were run again at {again:.2g}"


def spikes_in_words(
    spikes: Mapping[str, Sequence[Spikes]], rates: Callable[[str], Sequence[float]]
) -> Iterator[str]:
    """Describe the spikes at each learning rate.

    Args:
        spikes: Spikes by variant.
        rates: (variant) -> learning rates of its compared runs, in the order of training.
    """
    for name, by_rate in spikes.items():
        lrs = [*rates(name), math.nan]
        for at_rate, lr, lower in zip(by_rate, lrs, lrs[1:], strict=False):
            again = lower if at_rate.halved and math.isfinite(lower) else None
            yield spike_words(name, len(at_rate.seeds), at_rate.compared, lr, again)


VISIBLE = 0.1
"""Least distance of naive mean and estimate, in half widths, for both to be named."""
FEW = 3
"""Most variants with one sentence each in the verdict."""

BETTER, WORSE = (f"{outcome} {SMALL}" for outcome in ("better", "worse"))
GROUPS = ("better", BETTER, "worse", WORSE, "equivalent", "inconclusive", "identical")


def group_of(effect: Effect) -> str:
    """Return the effect's group, one of GROUPS."""
    small = effect.outcome in ("better", "worse") and effect.within_margin
    return f"{effect.outcome} {SMALL}" if small else effect.outcome


def _measured(
    name: str, variant: BySeed, baseline: BySeed, looks: Looks, placing_error: float
) -> Effect:
    """Return the difference of a variant from the baseline, with intervals."""
    seeds = sorted(variant.keys() & baseline.keys())
    pairs = [(variant[seed], baseline[seed]) for seed in seeds]
    differences = [v.loss - b.loss for v, b in pairs]
    intervals = [Interval(-math.inf, math.inf, 1 - alpha) for alpha in (ALPHA, 2 * ALPHA)]
    shared = SharedError(placing=placing_error)
    if len(pairs) >= 2:
        beside = text_error([(v.best.halves, b.best.halves) for v, b in pairs])
        shared = SharedError(beside, placing_error)
        intervals = [
            replace(looks.interval(differences, alpha, shared), level=1 - alpha)
            for alpha in (ALPHA, 2 * ALPHA)
        ]
    return Effect(
        variant=name,
        outcome="inconclusive",
        mean=_mean(differences),
        estimate=_mean(differences),
        interval=intervals[0],
        equivalence=intervals[1],
        margin=math.nan,
        text_error=shared.text,
        placing_error=placing_error,
        differences=tuple(differences),
        seeds=tuple(seeds),
        loss_per_bit_per_byte=_mean([b.best.loss / b.best.bits_per_byte for _, b in pairs]),
        baseline_loss=_mean([b.loss for _, b in pairs]),
    )


def _are_one(variant: BySeed, baseline: BySeed) -> bool:
    """True if both have the same runs at their common seeds."""
    keys = [(variant[s].best.key, baseline[s].best.key) for s in variant.keys() & baseline.keys()]
    return bool(keys) and all(one == other != "" for one, other in keys)


def _outcome(effect: Effect, decision: Decision | None) -> Outcome:
    if effect.caveats or decision is None or not decision.outcome:
        return "inconclusive"
    if decision.outcome == "superior":
        return "better" if effect.mean < 0 else "worse"
    return "equivalent"


def excludes(interval: Interval, value: float = 0.0) -> bool:
    """True if a value lies outside an interval."""
    return not interval.low <= value <= interval.high


def _failures(
    effect: Effect, runs: Sequence[RunResult], pair: Sequence[str], study: StudySpec
) -> Iterator[str]:
    """Yield caveats if failed runs cost at least as many pairs as are left."""
    failed = [run for run in runs if run.failed and run.variant in pair]
    if effect.seeds:
        failed = [r for r in failed if r.seed in study.seed_numbers and r.seed not in effect.seeds]
    if len({run.seed for run in failed}) < len(effect.seeds):
        return
    for name in pair:
        if number := sum(run.variant == name for run in failed):
            yield f"{number} run{'s' * (number > 1)} of {name} failed"


def _turned(effect: Effect, decision: Decision | None) -> Iterator[str]:
    """Yield a caveat if pairs after the deciding look change the sign of the mean."""
    if decision is None or decision.outcome != "superior":
        return
    first, pairs = decision.look, effect.differences
    if _mean(pairs[:first]) * effect.mean < 0:
        yield f"the first {first} pairs, which decided, say the opposite of all {len(pairs)}"


def _unlearnt(
    pair: Mapping[str, BySeed], learnt: Mapping[str, float], unit: Unit, tuned: Mapping[str, float]
) -> Iterator[str]:
    """Yield caveats if variant or baseline learnt no more than bigrams or guessing."""
    unlearnt = [
        name
        for name, by_seed in pair.items()
        if min((r.loss for r in by_seed.values()), default=tuned.get(name, -math.inf))
        > learnt.get(name, math.inf)
    ]
    diverged = [n for n in unlearnt if pair[n] and all(r.best.diverged for r in pair[n].values())]
    yield from (f"{name} {DIVERGED}" for name in diverged)
    asks = unit == "nats per answer"
    if asks and len(unlearnt) < len(pair):
        return
    losses = {f"({learnt[name]:.2f} {unit})" for name in unlearnt}
    if len(unlearnt) == len(pair) and len(losses) == 1 and not diverged:
        words = f"has more answers right {GUESSING}" if asks else f"learnt more {BIGRAMS}"
        yield f"neither {' nor '.join(unlearnt)} {words} {losses.pop()}"
        return
    for name in unlearnt:
        if name not in diverged:
            yield f"{name} {GUESSED if asks else UNLEARNT} ({learnt[name]:.2f} {unit})"


def _diverged_alone(
    pair: Mapping[str, BySeed], learnt: Mapping[str, float], study: StudySpec
) -> str:
    """Return the name of the only arm that diverged in all runs, if the opposite arm learnt; else "".

    Empty if learning rates were tuned, as a lower one might not have diverged.
    """
    if study.tune_lr:
        return ""
    diverged = {n: [r.best.diverged for r in by_seed.values()] for n, by_seed in pair.items()}
    lost = [n for n, ends in diverged.items() if ends and all(ends)]
    best = {n: min((r.loss for r in runs.values()), default=math.inf) for n, runs in pair.items()}
    learns = [n for n in pair if not any(diverged[n]) and best[n] <= learnt.get(n, math.inf)]
    return lost[0] if len(lost) == len(learns) == 1 else ""


def is_at_odds(effect: Effect) -> bool:
    """True if the outcome at equal tokens is reversed at equal compute."""
    multiplier = effect.multiplier if effect.outcome in ("better", "worse") else None
    return multiplier is not None and (multiplier.compute > 1) != (effect.mean < 0)


def is_unlearnt(effect: Effect) -> bool:
    """True if variant or baseline learnt too little for a comparison."""
    caveats = "; ".join(effect.caveats)
    return bool(effect.diverged) or any(w in caveats for w in (BIGRAMS, GUESSING, DIVERGED))


def claim_words(effect: Effect, name: str, baseline: str) -> str:
    """Describe an outcome without numbers."""
    if effect.outcome == "inconclusive":
        return f"The comparison of {name} with {baseline} is inconclusive"
    if effect.outcome not in ("better", "worse"):
        return f"{name} and {baseline} are {effect.outcome}"
    return f"{name} is {effect.outcome} than {baseline}" + f", but {SMALL}" * effect.within_margin


def _claim(effect: Effect, baseline: str) -> str:
    """Describe outcome and numbers, without the full stop."""
    words = claim_words(effect, effect.variant, baseline)
    if effect.outcome == "identical":
        return f"{words}, one model trained alike: nothing was compared"
    if effect.caveats:
        words += f" because {listed([*effect.caveats])}"
    if effect.diverged and effect.outcome != "inconclusive":
        return f"{words}: {diverged_words(effect)}"
    # The number of an inconclusive comparison would be remembered as an effect.
    silent = math.isnan(effect.mean) or not effect.has_numbers
    return words if silent else f"{words}: {_numbers(effect, baseline)}"


def diverged_words(effect: Effect) -> str:
    """Describe the divergence of one arm."""
    other = "and the other in none"
    return f"{effect.diverged} diverged in all {len(effect.seeds)} runs at the learning rate that was given, {other}"


def _remark(effect: Effect, advice: Callable[[Effect], str], *, several: bool) -> str:
    """Return a remark on the outcome, if any; `several` means more than one variant."""
    if effect.outcome in ("better", "worse"):
        alone = f"; {effect.outcome}{AT_EQUAL_TOKENS}" * is_at_odds(effect)
        small = f"; the margin is {margin_words(effect)}" * effect.within_margin
        return alone + small + f"; {LATER}" * (not excludes(effect.interval))
    if effect.outcome == "equivalent":
        low, high = effect.equivalence.low, effect.equivalence.high
        if max(-low, high) < effect.margin:
            return f"; the 90 % interval lies within the margin of {margin_words(effect)}"
        return f"; the 90 % interval lay within the margin of {margin_words(effect)}, when this was decided; {LATER}"
    if effect.outcome == "identical":
        return ""
    corrected = several and not effect.caveats and excludes(effect.interval)
    why = "; the interval leaves out 0, but not with Holm's correction for several variants"
    then = advice(effect)
    return why * corrected + (f"; {then}" if then else "")


def margin_words(effect: Effect) -> str:
    """Return the margin as `±0.0350 nats per token (1 % of the loss, 5.1 % of compute)`."""
    shares = ((effect.margin_share, "the loss"), (effect.margin_compute, "compute"))
    finite = [f"{100 * share:.2g} % of {what}" for share, what in shares if math.isfinite(share)]
    return f"±{effect.margin:.2g} {effect.unit}{_beside(listed(finite) if finite else '')}"


def _numbers(effect: Effect, baseline: str) -> str:
    """Describe a difference in compute, in loss and as a share of the loss, with intervals."""
    low, high, several = effect.interval.low, effect.interval.high, len(effect.seeds) > 1
    half = (high - low) / 2
    digits = _decimals(half)
    size, naive = (f"{abs(value):.{digits}f}" for value in (effect.estimate, effect.mean))
    beside = [f"naive mean {naive}"] * (abs(effect.mean - effect.estimate) > VISIBLE * half)
    beside += [f"95 % interval {_range(low, high, digits)}, {len(effect.seeds)} seeds"] * several
    where = "lower" if effect.mean < 0 else "higher"
    parts = [
        f"the loss of {effect.variant} is {size} {effect.unit} {where}" + _beside("; ".join(beside))
    ]
    if effect.multiplier:
        share, interval = compute_words(effect, effect.multiplier)
        one, other = by_loss(effect, baseline)
        interval = _beside(f"95 % interval {interval}" * bool(interval))
        parts.insert(
            0, f"{one} reached the final loss of {other} with {share} of the compute{interval}"
        )
    if share := share_words(effect):
        parts.append(share)
    return ", ".join(parts)


def _beside(words: str) -> str:
    return f" ({words})" if words else ""


def by_loss(effect: Effect, baseline: str) -> tuple[str, str]:
    """Return variant and baseline, ordered by loss at equal tokens."""
    return (effect.variant, baseline) if effect.mean < 0 else (baseline, effect.variant)


def compute_words(effect: Effect, multiplier: Multiplier) -> tuple[str, str]:
    """Return the better arm's compute for the other's final loss, and the 95 % interval.

    Both are shares of the other arm's compute. A bound has no interval.
    """
    wins, ends = effect.mean < 0, (multiplier.low, multiplier.high)
    shares = [_share(tokens, multiplier, wins) for tokens in (ends[::-1] if wins else ends)]
    interval = "" if multiplier.is_bound else " to ".join(shares)
    return _share(multiplier.tokens, multiplier, wins), interval


def _share(tokens: float, multiplier: Multiplier, wins: bool) -> str:
    """Return a share of the compute, as a bound beyond the trained horizons."""
    most = multiplier.most
    within = min(max(tokens, 1 / most), most) * multiplier.flops
    value = f"{1 / within if wins else within:.2f}"
    if (1 + NEAR) / most < tokens < most * (1 - NEAR):
        return value
    return f"{'less' if wins == (tokens > 1) else 'more'} than {value}"


def _range(low: float, high: float, digits: int, unit: str = "") -> str:
    """Return an interval without signs, with directions if it contains 0."""
    if low < 0 < high:
        return f"{-low:.{digits}f}{unit} lower to {high:.{digits}f}{unit} higher"
    near, far = sorted((abs(low), abs(high)))
    return f"{near:.{digits}f} to {far:.{digits}f}{unit}"


def share_words(effect: Effect) -> str:
    """Return the estimate as `0.6 % of the loss (0.3 to 1.2 %)`; "" for a loss near 0."""
    size, low, high = (
        100 * effect.as_share(x)
        for x in (effect.estimate, effect.interval.low, effect.interval.high)
    )
    if not math.isfinite(size):
        return ""
    digits = _decimals((high - low) / 2, least=1, shown=1)
    interval = _range(low, high, digits, " %") if math.isfinite(high - low) else ""
    return f"{abs(size):.{digits}f} % of the loss{_beside(interval)}"


def _member(effect: Effect) -> str:
    """Return a variant's name, with its estimate if it is better or worse."""
    if effect.outcome not in ("better", "worse"):
        return effect.variant
    if effect.diverged:
        return f"{effect.variant} ({effect.diverged} diverged)"
    half = (effect.interval.high - effect.interval.low) / 2
    return f"{effect.variant} ({signed(effect.estimate, _decimals(half))})"


def _decimals(half: float, least: int = 2, shown: int = 2) -> int:
    """Return the decimals for `shown` digits of an interval's half width."""
    finite = 0 < half < math.inf
    return max(least, min(6, shown - 1 - math.floor(math.log10(half)))) if finite else 3


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
