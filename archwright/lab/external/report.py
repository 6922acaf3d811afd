"""Results and page of a study over another trainer."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from archwright import format as fmt
from archwright.files import atomic_write
from archwright.lab.external.execution import Execution, Run
from archwright.lab.external.metric import metric_of
from archwright.lab.external.spec import ExternalSpec
from archwright.lab.procedure.sweep import replicate
from archwright.lab.procedure.verdict import effects
from archwright.lab.report import curves, horizons, learning_rates
from archwright.lab.report import effects as effects_chart
from archwright.lab.report.csv_files import write_tables
from archwright.lab.report.multiplier import drops, horizon, multiplier_in_tokens
from archwright.lab.report.page import headline
from archwright.lab.report.sections import runs_section
from archwright.lab.results import (
    Effect,
    Horizon,
    Multiplier,
    Replicate,
    RunResult,
    StudyResults,
    Unit,
    Variant,
)
from archwright.reporting.document import (
    HEADLINE_WORDS,
    MADE_BY,
    Axis,
    Block,
    Chart,
    Fact,
    Facts,
    Page,
    Row,
    Section,
    Table,
    Verbatim,
)
from archwright.reporting.styles import series_of

PAIRED = 0.2
"""Correlation below which seeds do not pair."""
FEWEST = 4
"""Pairs from which a correlation is a warning."""
FLAT = 1e-12
"""Relative deviation of equal losses."""
NOT_MATCHED = "parameters, FLOPs and memory: variants of another trainer are not matched"


@dataclass(frozen=True)
class Told:
    """Facts of a study for its page and its verdict."""

    spec: ExternalSpec
    unit: str
    command: str
    unequal: Sequence[str]
    """Settings that are not controlled."""
    facts: Sequence[Fact]
    has_tokens: bool = False


def results_of(execution: Execution, command: str, complete: bool) -> tuple[StudyResults, Told]:
    """Return the results of a study so far."""
    spec, now = execution.spec, execution.standing()
    full = sorted(r for r in execution.results if r.steps == spec.steps and not r.twin)
    runs = [execution.run_result(run) for run in full]
    shorter = [run for run, _ in execution.shorter() if run in execution.results]
    replicates = [
        replicate([execution.run_result(Run(name, seed, k, spec.steps)) for k in powers])
        for name, seeds in now.compared.items()
        for seed, powers in seeds.items()
    ]
    bound = execution.highest - 1e-9 * abs(execution.highest)
    diverged = any(run.diverged for run in runs)
    found = effects(
        replicates,
        spec,
        next(iter(spec.variants)),
        runs=runs,
        edges=[name for name, sweep in now.sweeps.items() if sweep.at_boundary],
        learnt=dict.fromkeys(spec.variants, bound) if diverged else None,
        unlearnt=now.unlearnt,
        unit=cast(Unit, unit_of(spec)),
        multiplier=lambda effect: multiplier_of(effect, replicates, execution),
        **now.judged,
    )
    grids = {n: [execution.lr(k) for k in sweep.window] for n, sweep in now.sweeps.items()}
    notes = [*_notes(execution, runs), *pairing_notes(found, replicates)]
    short = [execution.run_result(run) for run in shorter]
    told = Told(
        spec,
        unit_of(spec),
        command,
        [NOT_MATCHED, *_missing(spec)],
        _facts(execution),
        any(r.tokens for v in execution.results.values() for r in v["readings"]),
    )
    results = study_results(
        told, found, runs, replicates, str(execution.folder), grids, notes, complete, short
    )
    return replace(results, seconds=execution.spent, predicted_seconds=math.nan), told


def study_results(
    told: Told,
    found: Sequence[Effect],
    runs: Sequence[RunResult],
    replicates: Sequence[Replicate],
    folder: str,
    grids: Mapping[str, Sequence[float]],
    notes: Sequence[str],
    complete: bool = True,
    shorter: Sequence[RunResult] = (),
) -> StudyResults:
    """Return results with the verdict in the words of the metric."""
    spec, names = told.spec, list(told.spec.variants)
    found = [replace(e, sentence=worded(e.sentence, spec)) for e in found]
    verdict = found[0].sentence if len(found) == 1 else f"{headline(found, names[0], 10**6)}."
    variants = [Variant(name, spec.variants[name], (), 0, 0, 0.0, 0, 0, ()) for name in names]
    tokens = max((run.tokens for run in runs), default=0)
    steps = f" of {spec.steps:,} steps" if spec.steps else ""
    hidden = {"command": spec.template.masked} if spec.command else {}
    return StudyResults(
        study=spec.model_copy(update=hidden),
        folder=folder,
        verdict=verdict,
        scope=f"Measured with this trainer, by runs{steps}, only.",
        variants=variants,
        runs=runs,
        replicates=replicates,
        effects=found,
        grids=grids,
        held=(),
        tokens_per_run=tokens,
        steps=spec.steps or 0,
        evaluation_tokens=0,
        device="",
        predicted_seconds=math.nan,
        seconds=0.0,
        command=told.command,
        unit=cast(Unit, told.unit),
        shorter_runs=shorter,
        complete=complete,
        notes=notes,
    )


def unit_of(spec: ExternalSpec) -> str:
    """Return the unit of losses; a metric to maximize is negated."""
    name = metric_of(spec.metric).name if spec.metric else ""
    return f"{'minus ' * spec.maximize}{spec.unit or name or 'of the metric'}"


def worded(text: str, spec: ExternalSpec) -> str:
    """Return a sentence on a loss in the words of the metric."""
    for words in ("learnt no more", "learnt more"):
        then = "diverged at every learning rate" if " no " in words else "trained at any rate"
        text = re.sub(rf"{words} than a bigram model \([^)]*\)", then, text)
    if not spec.maximize:
        return text
    names = sorted(spec.variants, key=len, reverse=True)
    for i, name in enumerate(names):  # names are no words to replace
        text = text.replace(name, f"\0{i}\0")
    swapped = {"lower": "higher", "higher": "lower", "loss": "metric", "minus ": ""}
    text = re.sub("|".join(swapped), lambda match: swapped[match[0]], text)
    for i, name in enumerate(names):
        text = text.replace(f"\0{i}\0", name)
    return text


def multiplier_of(
    effect: Effect, replicates: Sequence[Replicate], execution: Execution
) -> Multiplier | None:
    """Return how much compute a difference is worth; None without shorter horizons of two pairs."""
    spec, names = execution.spec, (next(iter(execution.spec.variants)), effect.variant)
    whole = {(r.variant, r.seed): r.loss for r in replicates}
    known = {
        (run.variant, run.seed, share): execution.loss(run)
        for run, share in execution.shorter()
        if run in execution.results and not execution.diverged(run)
    }
    shares = spec.horizons
    seeds = [s for s in effect.seeds if all((n, s, h) in known for n in names for h in shares)]
    if not shares or len(seeds) < 2:
        return None
    rows = {n: [[*(known[n, s, h] for h in shares), whole[n, s]] for s in seeds] for n in names}
    baseline, variant = (drops(rows[name]) for name in names)
    tokens, low, high = multiplier_in_tokens(
        effect.mean, effect.interval, shares, baseline, variant
    )
    differences = np.subtract(rows[names[1]], rows[names[0]])
    last = Horizon(
        spec.steps or 0,
        effect.mean,
        effect.interval.low,
        effect.interval.high,
        len(effect.seeds),
    )
    at = [
        horizon(execution.steps(share) or 0, differences[:, i].tolist())
        for i, share in enumerate(shares)
    ]
    base, own = (spec.cost_per_step.get(name, 1.0) for name in names)
    return Multiplier(tokens, low, high, 1 / shares[0], base / own, math.nan, [*at, last])


def correlations(
    found: Sequence[Effect], replicates: Sequence[Replicate]
) -> dict[str, tuple[int, float, float]]:
    """Return, by variant, the number of pairs, the correlation with the baseline over seeds, and the deviation of a
    difference over that of unpaired runs."""
    losses = {(r.variant, r.seed): r.loss for r in replicates}
    rows = {}
    for effect in found:
        if len(effect.seeds) > 2:
            own = np.array([losses[effect.variant, seed] for seed in effect.seeds])
            difference = np.array(effect.differences)
            base = own - difference
            scale, spread = float(base.std() * own.std()), float(base.var() + own.var())
            both = float(np.mean((base - base.mean()) * (own - own.mean())))
            known = min(base.std(), own.std()) > FLAT * abs(base.mean())
            correlation = both / scale if known else math.nan
            gain = math.sqrt(float(difference.var()) / spread) if known else math.nan
            rows[effect.variant] = (len(own), correlation, gain)
    return rows


def pairing_notes(found: Sequence[Effect], replicates: Sequence[Replicate]) -> list[str]:
    """Warn of variants with seeds that do not pair."""
    notes = []
    for name, (pairs, r, _) in correlations(found, replicates).items():
        if math.isnan(r):
            notes.append(f"{name}: all seeds have one loss; does {{seed}} reach the trainer?")
        elif pairs >= FEWEST and r < PAIRED:
            notes.append(
                f"Seeds of {name} and the baseline do not pair: their correlation over {pairs} seeds is {r:.2f}. "
                "Intervals hold, but are no narrower than those of unpaired runs. Pairs need one seed for the "
                "initial weights that both have and for the order of the data."
            )
    return notes


def page(results: StudyResults, told: Told) -> Page:
    """Return the page of a study."""
    spec, series = told.spec, series_of([variant.name for variant in results.variants])
    head = headline(results.effects, results.variants[0].name, HEADLINE_WORDS)
    made = [
        effects_chart.effects_section(results, series),
        _pairing_section(results),
        horizons.horizons_section(results, series),
        curves.curves_section(results, series),
        learning_rates.learning_rates_section(results, series) if spec.tune_lr else None,
    ]
    words = {"held-out ": "", "Held-out ": "", "Training FLOPs": "Compute"}
    words |= {
        "tokens of a run": "steps of a run",
        " at the rate that is best for all seeds together (0e0)": "",
    }
    sections = [_reworded(section, words) for section in made if section]
    rows = [Row((line.partition(": ")[0], line.partition(": ")[2])) for line in told.unequal]
    blocks: list[Block] = [Facts({"": told.facts}), Table("Not controlled.", ("What", "Why"), rows)]
    sections.append(Section("Controlled", blocks))
    if listed := runs_section(results):
        sections.append(listed)
    if told.command:
        text = spec.toml()
        shown: list[Block] = [
            Verbatim("Command", told.command),
            Verbatim("study.toml", text, file="study.toml", folded=True),
        ]
        sections.append(Section("Reproduce", shown))
    ended = len(results.runs) + len(results.shorter_runs)
    notice = (
        ""
        if results.complete
        else (
            f"This study is not complete: {ended} runs have ended. All that follows is of these and may still change."
        )
    )
    axes = [Axis("step", "Steps", "steps of training", "step %{x:,.0f}")]
    if told.has_tokens:
        axes.append(Axis("tokens", "Tokens", "tokens trained on", "%{x:.4s} tokens"))
    if spec.cost_per_step:
        axes.append(Axis("flops", "Compute", "compute by --cost-per-step", "%{x:.4s}"))
    return Page(
        title=f"{spec.name}: {head}",
        kicker=f"archwright study {spec.name}",
        verdict=head,
        verdict_rest=f"{results.verdict.removeprefix(head).lstrip(':;,. ')} {results.scope}",
        notice=notice,
        notes=results.notes,
        axes=axes,
        sections=sections,
        footer=f"{MADE_BY} from {results.folder}. One file, which requests nothing.",
    )


def write(results: StudyResults, told: Told) -> None:
    """Write tables and page into the folder of a study."""
    write_tables(results, results.folder)
    atomic_write(f"{results.folder}/report.html", page(results, told).html())


def _pairing_section(results: StudyResults) -> Section | None:
    rows = [
        Row((name, str(pairs), fmt.signed(r, 2), fmt.percent(gain) if math.isfinite(gain) else "–"))
        for name, (pairs, r, gain) in correlations(results.effects, results.replicates).items()
    ]
    caption = (
        "Correlation of the losses of a variant and the baseline over their seeds, and the standard deviation of a "
        "difference as a share of that of unpaired runs. Below 100 %, pairs save runs."
    )
    head = ("Variant", "Pairs", "Correlation", "Deviation of a difference")
    return Section("Pairing", [Table(caption, head, rows)]) if rows else None


def _notes(execution: Execution, runs: Sequence[RunResult]) -> list[str]:
    notes = []
    spec = execution.spec
    if spec.maximize:
        notes.append(
            "The metric is maximized: numbers below are of the negated metric, so that lower is better."
        )
    if number := sum(run.diverged for run in runs):
        notes.append(
            f"{number} of {len(runs)} runs diverged; each counts as the highest loss of the study."
        )
    if execution.left_out:
        notes.append(
            f"{execution.left_out} was reached: the runs that were still wanted are left out."
        )
    twins = [run for run in execution.results if run.twin]
    for twin in twins:
        off = abs(execution.value(twin) - execution.value(twin._replace(twin=False)))
        same = "the trainer is deterministic" if off == 0 else "seeds pair no better than that"
        notes.append(
            f"Two runs of one seed, {twin.steps or 'all'} steps, differ by {off:.3g}: {same}."
        )
    late = [
        run
        for run, values in execution.results.items()
        if run.steps
        and (step := values["readings"][-1].step)
        and not 0.5 <= step / run.steps <= 1.5
    ]
    if late:
        step = execution.results[late[0]]["readings"][-1].step
        notes.append(
            f"The metric of a run of {late[0].steps:,} steps is of step {step:,}: does {{steps}} reach the trainer?"
        )
    return notes


def _missing(spec: ExternalSpec) -> list[str]:
    """Return the settings that the command does not have."""
    lines = []
    if not spec.tune_lr:
        lines.append("learning rates: not tuned, each variant is judged at its given rate")
    if spec.steps is None:
        lines.append(
            "compute: no shorter horizons and no multiplier without {steps} in the command"
        )
    elif not spec.cost_per_step:
        lines.append(
            "compute of a step: counted as equal for all variants, as no --cost-per-step is given"
        )
    if spec.steps is not None:
        lines.append(
            "schedule: {steps} must set its end too, or shorter runs say nothing of shorter horizons"
        )
    return lines


def _facts(execution: Execution) -> list[Fact]:
    spec = execution.spec
    pairs, unit = len(spec.seed_numbers), unit_of(spec)
    rates = f"tuned from {spec.lr:g}" if spec.tune_lr else "as given"
    return [
        Fact("Baseline", next(iter(spec.variants))),
        Fact("Metric", spec.metric or "returned by the function", unit),
        Fact("Steps of a run", f"{spec.steps:,}" if spec.steps else "set by the trainer"),
        Fact("Pairs", f"{pairs} at most"),
        Fact("Learning rates", rates),
        Fact("Margin", f"{100 * spec.equivalence_margin:g} % of the baseline's loss"),
        Fact("Wall time", fmt.duration(execution.spent)),
    ]


def _reworded(value: Any, words: Mapping[str, str]) -> Any:
    """Return a section with words replaced in titles, captions and notes, not in data."""
    if isinstance(value, Chart):
        axis = {k: v for k, v in value.layout.items() if k == "xaxis"}
        texts = {
            n: _reworded(getattr(value, n), words) for n in ("title", "unit", "note", "summary")
        }
        return replace(value, **texts, layout={**value.layout, **_reworded(axis, words)})
    if isinstance(value, Table):
        return replace(
            value, caption=_reworded(value.caption, words), head=_reworded(value.head, words)
        )
    if isinstance(value, Section):
        return replace(value, blocks=[_reworded(block, words) for block in value.blocks])
    if isinstance(value, str):
        for old, new in words.items():
            value = value.replace(old, new)
        return value[:1].upper() + value[1:] if value else value
    if isinstance(value, dict):
        return {key: _reworded(item, words) for key, item in value.items()}
    return [_reworded(item, words) for item in value] if isinstance(value, (list, tuple)) else value
