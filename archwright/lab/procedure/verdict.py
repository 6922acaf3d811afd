"""A study's verdict, in numbers and in a sentence: each variant against the baseline, over paired seeds."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from archwright.format import count, listed, signed
from archwright.lab.procedure.constants import ALPHA
from archwright.lab.procedure.looks import Decision, Looks
from archwright.lab.procedure.statistics import (
    SharedError,
    holm,
    paired_p_value,
    t_interval,
    text_error,
)
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
AT_BOUNDARY = "the best learning rate of {} is at the edge of its grid"
LATER = "pairs that were trained after the decision have moved the interval"
SCOPE = "Measured at this size and token budget only."


def effects(
    replicates: Sequence[Replicate],
    study: StudySpec,
    baseline: str,
    *,
    runs: Sequence[RunResult] = (),
    edges: Collection[str] = (),
    learnt: Mapping[str, float] | None = None,
    unlearnt: Mapping[str, float] | None = None,
    unit: Unit = "nats per token",
    decisions: Mapping[str, Decision] | None = None,
    looks: Looks | None = None,
    placing: Mapping[str, float] | None = None,
    multiplier: Callable[[Effect], Multiplier | None] = lambda effect: None,
    advice: Callable[[Effect], str] = lambda effect: "",
) -> list[Effect]:
    """Return each variant minus the baseline over their common seeds, in the study's order.

    The outcome is the first of these that holds:

    - identical: both are the same runs.
    - inconclusive: there are caveats: fewer than two pairs, whose interval is endless; a best learning rate at an end
      of its grid (`edges`); as many pairs lost to failed `runs` as are left; a loss above `learnt`, that of bigrams, or
      of a task both losses above that of guessing; pairs after the decision that turn the sign of the mean.
    - better, worse: superiority by Holm's step-down. By rising p-value, the r-th of m variants (from 0) needs an
      interval at the level 1 - ALPHA / (m - r) that excludes 0, from ten seeds both BCa and t. The first that does not
      ends it. If the mean is smaller than the noise floor, the outcome is "below the noise".
    - equivalent: the 90 % interval lies within the study's margin.

    If pairs were looked at several times, superiority and equivalence are those of `decisions`, intervals hold at all
    `looks` together, and the noise floor stops nothing.

    Args:
        learnt: the loss below which each variant has learnt; without it, all have.
        unlearnt: Loss of each variant that tuning found to be above that, so that it was trained no further.
        unit: of all losses.
        placing: by how much the loss of each variant may be too high for where its learning rate was placed, in nats.
        multiplier: returns how much compute a difference is worth.
        advice: returns what to do about a variant that is inconclusive.
    """
    names = dict.fromkeys([*study.variants, *(r.variant for r in replicates)])
    names.pop(baseline, None)
    by_seed = {n: {r.seed: r for r in replicates if r.variant == n} for n in [baseline, *names]}
    measured = [
        replace(
            _measured(
                name,
                by_seed[name],
                by_seed[baseline],
                study.equivalence_margin,
                looks,
                math.hypot(*((placing or {}).get(n, 0.0) for n in (name, baseline))),
            ),
            unit=unit,
        )
        for name in names
    ]
    adjusted = holm([effect.p_value for effect in measured])
    superior = _superior(measured) if decisions is None else set()
    found = []
    for effect, p_value in zip(measured, adjusted, strict=True):
        pair = (effect.variant, baseline)
        decision = (decisions or {}).get(effect.variant)
        stopped = not (unlearnt or {}).keys().isdisjoint(pair)
        few = {} if stopped else {0: ["no seed has both"], 1: ["only one seed has both"]}
        caveats = [
            *few.get(len(effect.seeds), []),
            *(AT_BOUNDARY.format(n) for n in pair if n in edges),
            *_failures(effect, runs, pair, study),
            *_turned(effect, decision),
        ]
        runs_of_both = {n: by_seed[n] for n in pair}
        diverged = _diverged_alone(runs_of_both, learnt or {}, study)
        if not diverged:
            caveats += _unlearnt(runs_of_both, learnt or {}, unit, unlearnt or {})
        effect = replace(effect, holm_p_value=p_value, caveats=tuple(caveats), diverged=diverged)
        same = _are_one(by_seed[effect.variant], by_seed[baseline])
        if same:
            outcome: Outcome = "identical"
        elif decisions is None:
            outcome = _outcome(effect, effect.variant in superior, _within_margin(effect))
            if outcome in ("better", "worse") and abs(effect.mean) < effect.noise:
                outcome = "below the noise"
        else:
            at_look = decision.outcome if decision else ""
            outcome = _outcome(effect, at_look == "superior", at_look == "equivalent")
        effect = replace(effect, outcome=outcome)
        known = effect.has_numbers and outcome != "identical"
        effect = replace(effect, multiplier=multiplier(effect) if known else None)
        sentence = _claim(effect, baseline) + _remark(effect, advice, several=len(measured) > 1)
        found.append(replace(effect, sentence=sentence + "."))
    return found


def verdict(
    effects: Sequence[Effect],
    baseline: str,
    *,
    parameters: float,
    tokens: float,
    device: str,
    text: str = "",
    advice: Callable[[Effect], str] = lambda effect: "",
) -> str:
    """Return the study in a sentence: outcomes, scale and device, and advice on a single variant."""
    source = f" of {text}" if text else ""
    scale = f", at {count(parameters)} non-embedding parameters and {count(tokens)} tokens{source} on {device}"
    if not effects:
        return f"{baseline} was compared with nothing{scale}."
    if len(effects) == 1:
        return (
            _claim(effects[0], baseline) + scale + _remark(effects[0], advice, several=False) + "."
        )
    groups = []
    brief = len(effects) > FEW
    for outcome, words in GROUPS.items():
        if members := [_member(effect, brief) for effect in effects if effect.outcome == outcome]:
            groups.append(f"{listed(members)} {words[len(members) > 1]}")
    unit = f" in {effects[0].unit}" if brief else ""
    return f"Against {baseline}{unit}, {', '.join(groups)}{scale}."


FEW = 3
"""Variants up to which the sentence has intervals, too; of more they are in the table below it."""

GROUPS: Mapping[Outcome, tuple[str, str]] = {
    "better": ("is better", "are better"),
    "worse": ("is worse", "are worse"),
    "equivalent": ("is equivalent", "are equivalent"),
    "below the noise": ("differs by less than the noise", "differ by less than the noise"),
    "inconclusive": ("is inconclusive", "are inconclusive"),
    "identical": ("is identical", "are identical"),
}


def _measured(
    name: str,
    variant_by_seed: Mapping[int, Replicate],
    baseline_by_seed: Mapping[int, Replicate],
    margin: float,
    looks: Looks | None,
    placing_error: float,
) -> Effect:
    """Return the numbers of one pair; what depends on the others is still open."""
    seeds = sorted(variant_by_seed.keys() & baseline_by_seed.keys())
    pairs = [(variant_by_seed[seed], baseline_by_seed[seed]) for seed in seeds]
    differences = [variant.loss - baseline.loss for variant, baseline in pairs]
    baseline_loss = _mean([baseline.loss for _, baseline in pairs])
    enough, shared = len(pairs) >= 2, SharedError(placing=placing_error)
    endless = Interval(-math.inf, math.inf, 1 - ALPHA, "t")
    interval = student = endless
    equivalence = replace(endless, level=0.90)
    if enough and looks is None:
        interval = student = t_interval(differences)
        equivalence = t_interval(differences, equivalence.level)
    elif enough and looks is not None:
        beside = text_error([(variant.best.halves, base.best.halves) for variant, base in pairs])
        shared = SharedError(beside, placing_error)
        interval = student = replace(looks.interval(differences, ALPHA, shared), level=1 - ALPHA)
        equivalence = replace(looks.interval(differences, 2 * ALPHA, shared), level=1 - 2 * ALPHA)
    return Effect(
        variant=name,
        outcome="inconclusive",
        mean=_mean(differences),
        interval=interval,
        t_interval=student,
        equivalence=equivalence,
        margin=margin * baseline_loss,
        noise=0.0,
        p_value=paired_p_value(differences, shared) if enough else 1.0,
        text_error=shared.text,
        placing_error=placing_error,
        holm_p_value=1.0,
        differences=tuple(differences),
        seeds=tuple(seeds),
        loss_per_bit_per_byte=_mean([b.best.loss / b.best.bits_per_byte for _, b in pairs]),
        baseline_loss=baseline_loss,
    )


def _superior(measured: Sequence[Effect]) -> set[str]:
    """Return the variants whose difference from the baseline is not 0, all of them at once at ALPHA."""
    found: set[str] = set()
    for rank, effect in enumerate(sorted(measured, key=lambda effect: effect.p_value)):
        level = 1 - ALPHA / (len(measured) - rank)
        if len(effect.differences) < 2:
            break
        if not excludes(t_interval(effect.differences, level), 0.0):
            break
        found.add(effect.variant)
    return found


def _are_one(
    variant_by_seed: Mapping[int, Replicate], baseline_by_seed: Mapping[int, Replicate]
) -> bool:
    """Return whether two variants are the same runs."""
    seeds = variant_by_seed.keys() & baseline_by_seed.keys()
    keys = [(variant_by_seed[seed].best.key, baseline_by_seed[seed].best.key) for seed in seeds]
    return bool(keys) and all(one == other != "" for one, other in keys)


def _outcome(effect: Effect, superior: bool, equivalent: bool) -> Outcome:
    if effect.caveats:
        return "inconclusive"
    if superior:
        return "better" if effect.mean < 0 else "worse"
    return "equivalent" if equivalent else "inconclusive"


def excludes(interval: Interval, value: float) -> bool:
    """Return whether a value lies outside."""
    return not interval.low <= value <= interval.high


def _within_margin(effect: Effect) -> bool:
    """Two one-sided tests at 5 % (Schuirmann, 1987)."""
    return -effect.margin < effect.equivalence.low and effect.equivalence.high < effect.margin


def _failures(
    effect: Effect, runs: Sequence[RunResult], pair: Sequence[str], study: StudySpec
) -> Iterator[str]:
    """Yield a caveat for each variant that lost as many pairs to failed runs as are left."""
    failed = [run for run in runs if run.failed and run.variant in pair]
    if effect.seeds:
        failed = [r for r in failed if r.seed in study.seed_numbers and r.seed not in effect.seeds]
    if len({run.seed for run in failed}) < len(effect.seeds):
        return
    for name in pair:
        if number := sum(run.variant == name for run in failed):
            yield f"{number} run{'s' * (number > 1)} of {name} failed"


def _turned(effect: Effect, decision: Decision | None) -> Iterator[str]:
    """Pairs after the look that decided do not turn what it found."""
    if decision is None or decision.outcome != "superior":
        return
    then = _mean(effect.differences[: decision.look])
    if then * effect.mean < 0:
        yield (
            f"the first {decision.look} pairs, which decided, say the opposite of all {len(effect.differences)}"
        )


def _unlearnt(
    pair: Mapping[str, Mapping[int, Replicate]],
    learnt: Mapping[str, float],
    unit: Unit,
    tuned: Mapping[str, float],
) -> Iterator[str]:
    best = {
        n: min((r.loss for r in found.values()), default=tuned.get(n, -math.inf))
        for n, found in pair.items()
    }
    unlearnt = [name for name, loss in best.items() if loss > learnt.get(name, math.inf)]
    diverged = [
        n for n in unlearnt if pair[n] and all(found.best.diverged for found in pair[n].values())
    ]
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
    pair: Mapping[str, Mapping[int, Replicate]], learnt: Mapping[str, float], study: StudySpec
) -> str:
    """Return the variant that diverged in all runs while the other learnt in all; else nothing.

    Only at given rates: tuning may have left out a lower one.
    """
    if study.tune_lr:
        return ""
    always, never = [], []
    for name, found in pair.items():
        diverged = [replicate.best.diverged for replicate in found.values()]
        best = min((r.loss for r in found.values()), default=math.inf)
        if diverged and all(diverged):
            always.append(name)
        elif not any(diverged) and best <= learnt.get(name, math.inf):
            never.append(name)
    return always[0] if len(always) == len(never) == 1 else ""


def is_at_odds(effect: Effect) -> bool:
    """Return whether a variant is better at equal tokens and needs more compute for the same loss, or the reverse."""
    found, known = effect.multiplier, effect.outcome in ("better", "worse")
    return known and found is not None and (found.compute > 1) != (effect.mean < 0)


def is_unlearnt(effect: Effect) -> bool:
    """Return whether a variant or the baseline learnt too little for their difference to say anything."""
    words = (BIGRAMS, GUESSING, DIVERGED)
    return bool(effect.diverged) or any(
        word in caveat for caveat in effect.caveats for word in words
    )


def claim_words(outcome: Outcome, name: str, baseline: str) -> str:
    """Return an outcome in words, without numbers."""
    if outcome == "inconclusive":
        return f"The comparison of {name} with {baseline} is inconclusive"
    one, several = GROUPS[outcome]
    superior = outcome in ("better", "worse")
    return f"{name} {one} than {baseline}" if superior else f"{name} and {baseline} {several}"


def _claim(effect: Effect, baseline: str) -> str:
    """Return outcome and numbers, without the full stop."""
    words = claim_words(effect.outcome, effect.variant, baseline)
    if effect.outcome == "identical":
        return f"{words}, one model trained alike: nothing was compared"
    if effect.caveats:
        words += f" because {listed([*effect.caveats])}"
    if effect.diverged and effect.outcome != "inconclusive":
        return f"{words}: {diverged_words(effect)}"
    # What is inconclusive has no number to be remembered by.
    silent = math.isnan(effect.mean) or not effect.has_numbers
    return words if silent else f"{words}: {_numbers(effect, baseline)}"


def diverged_words(effect: Effect) -> str:
    """Say which of two diverged."""
    other = "and the other in none"
    return f"{effect.diverged} diverged in all {len(effect.seeds)} runs at the learning rate that was given, {other}"


def _remark(effect: Effect, advice: Callable[[Effect], str], *, several: bool) -> str:
    """Return a remark on the outcome where it needs one; `several`: whether several variants were compared."""
    digits = _digits(effect)
    margin = f"the margin of {100 * effect.margin / effect.baseline_loss:.2g} % fixed beforehand"
    if effect.outcome in ("better", "worse"):
        alone = f"; {effect.outcome}{AT_EQUAL_TOKENS}" * is_at_odds(effect)
        small = f"; that is smaller than {margin}" * _within_margin(effect)
        return alone + small + f"; {LATER}" * (not excludes(effect.interval, 0.0))
    if effect.outcome == "equivalent":
        within = f"±{effect.margin:.{digits}f}, {margin}"
        if _within_margin(effect):
            return f"; the 90 % interval lies within {within}"
        return f"; the 90 % interval lay within {within}, when this was decided; {LATER}"
    if effect.outcome == "below the noise":
        moves = "the pairs agree, but another set of seeds alone moves the mean as much"
        return f"; {moves} ({effect.noise:.{digits}f})"
    open_still = effect.outcome == "inconclusive" and not effect.caveats
    why = ""
    if open_still and several and excludes(effect.interval, 0.0):
        why = "; the interval leaves out 0, but not with Holm's correction for several variants"
    then = advice(effect) if effect.outcome == "inconclusive" else ""
    return why + (f"; {then}" if then else "")


def _numbers(effect: Effect, baseline: str) -> str:
    digits, where = _digits(effect), "lower" if effect.mean < 0 else "higher"
    parts = [f"the loss of {effect.variant} is {abs(effect.mean):.{digits}f} {effect.unit} {where}"]
    if len(effect.seeds) > 1:
        parts[0] += f" (95 % interval {_range(effect)}, {len(effect.seeds)} seeds)"
    if effect.multiplier:
        parts.insert(0, f"for the same loss {baseline} needs {compute_words(effect.multiplier)}")
    if effect.unit != "bits per byte" and math.isfinite(effect.bits_per_byte):
        parts.append(f"{abs(effect.bits_per_byte):.{digits}f} bits per byte")
    if math.isfinite(effect.share):
        share = 100 * abs(effect.share)
        parts.append(f"{share:{'.2g' if share < 99.5 else '.0f'}} % of the loss")
    return ", ".join(parts)


def compute_words(found: Multiplier) -> str:
    """Return a multiplier as `1.8 times the compute (95 % interval 1.5 to 2.2)`."""
    low, high = found.interval
    ends = " to ".join(
        _times(tokens, value, found) for tokens, value in ((found.low, low), (found.high, high))
    )
    interval = "" if found.is_bound else f" (95 % interval {ends})"
    return f"{_times(found.tokens, found.compute, found)} times the compute{interval}"


def _times(tokens: float, value: float, found: Multiplier) -> str:
    """Return a factor in words; what lies beyond the horizons that were trained is a bound."""
    if tokens >= found.most * (1 - NEAR):
        return f"more than {found.most * found.flops:.2g}"
    if tokens <= (1 + NEAR) / found.most:
        return f"less than {found.flops / found.most:.2g}"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _range(effect: Effect) -> str:
    """Return the interval, without signs: in the direction of the mean where it has only one."""
    digits, low, high = _digits(effect), effect.interval.low, effect.interval.high
    if low < 0 < high:
        return f"{-low:.{digits}f} lower to {high:.{digits}f} higher"
    near, far = sorted((abs(low), abs(high)))
    return f"{near:.{digits}f} to {far:.{digits}f}"


def _member(effect: Effect, brief: bool) -> str:
    """Return a variant's name, and its effect where it has one, with the interval unless `brief`."""
    if effect.outcome not in ("better", "worse"):
        return effect.variant
    if effect.diverged:
        return f"{effect.variant} ({effect.diverged} diverged)"
    if brief:
        return f"{effect.variant} ({signed(effect.mean, _digits(effect))})"
    amount = f"{abs(effect.mean):.{_digits(effect)}f} {effect.unit}"
    where = "lower" if effect.mean < 0 else "higher"
    compute = f"worth {compute_words(effect.multiplier)}; " if effect.multiplier else ""
    alone = AT_EQUAL_TOKENS * is_at_odds(effect)
    return f"{effect.variant} ({compute}{amount} {where}{alone}, {_range(effect)})"


def _digits(effect: Effect) -> int:
    """Return decimals that show two digits of the interval's half width."""
    half = (effect.interval.high - effect.interval.low) / 2
    return max(2, min(6, 1 - math.floor(math.log10(half)))) if 0 < half < math.inf else 3


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
