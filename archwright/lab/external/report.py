"""Results and page of a study over another trainer."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from archwright import format as fmt
from archwright.files import atomic_write
from archwright.lab.external.execution import Execution, Run
from archwright.lab.external.metric import metric_of
from archwright.lab.external.spec import ExternalSpec
from archwright.lab.procedure.sweep import replicate
from archwright.lab.procedure.verdict import effects, spikes_in_words, verdict
from archwright.lab.report import curves, horizons, learning_rates
from archwright.lab.report import effects as effects_chart
from archwright.lab.report.csv_files import write_tables
from archwright.lab.report.multiplier import multiplier
from archwright.lab.report.page import headline
from archwright.lab.report.sections import runs_section
from archwright.lab.results import Effect, Multiplier, StudyResults, Unit, Variant
from archwright.reporting import document as doc
from archwright.reporting.styles import series_of

PAIRED = 0.2
"""Correlation below which seeds do not pair."""
FEWEST = 4
"""Pairs from which a correlation is a warning."""
WORDS = {
    "held-out ": "",
    "Held-out l": "L",
    " at the rate that is best for all seeds together (0e0)": "",
}
"""Words of pages that do not hold for a metric of another trainer."""


def results_of(execution: Execution, command: str, complete: bool) -> StudyResults:
    """Return the current results of a study."""
    spec, slope, unit = execution.spec, execution.slope(), cast(Unit, unit_of(execution.spec))
    now = execution.standing(slope)
    whole = sorted(run for run in execution.results if run.steps == spec.steps and not run.twin)
    runs, names = [execution.run_result(run) for run in whole], [*spec.variants]
    replicates = [
        replicate([execution.run_result(Run(name, seed, k, spec.steps)) for k in powers])
        for name, seeds in now.compared.items()
        for seed, powers in seeds.items()
    ]
    found = [
        replace(effect, sentence=worded(effect.sentence, spec))
        for effect in effects(
            replicates,
            spec,
            names[0],
            runs=runs,
            edges=[name for name, sweep in now.sweeps.items() if sweep.at_boundary],
            learnt=dict.fromkeys(names, execution.learnt),
            unlearnt=now.unlearnt,
            unit=unit,
            slope=slope,
            multiplier=lambda effect: multiplier_of(effect, execution),
            **now.judged,
        )
    ]
    spikes = spikes_in_words(now.spikes, lambda name: [*map(execution.lr, now.powers(name))])
    steps = f" of {spec.steps:,} steps" if spec.steps else ""
    hidden = {"command": spec.masked["command"]} if spec.command else {}
    return StudyResults(
        study=spec.model_copy(update=hidden),
        folder=str(execution.folder),
        verdict=verdict(found, names[0], [*spikes]),
        scope=f"Measured with this trainer, by runs{steps}, only.",
        variants=[Variant(n, spec.variants[n], (), 0, 0, 0.0, 0, 0, ()) for n in names],
        runs=runs,
        replicates=replicates,
        effects=found,
        grids={n: [execution.lr(k) for k in sweep.window] for n, sweep in now.sweeps.items()},
        held=(),
        tokens_per_run=max((run.tokens for run in runs), default=0),
        steps=spec.steps or 0,
        evaluation_tokens=0,
        device="",
        predicted_seconds=math.nan,
        seconds=execution.spent,
        command=command,
        unit=unit,
        shorter_runs=[
            execution.run_result(r) for r in execution.shorter() if r in execution.results
        ],
        complete=complete,
        spikes=now.spikes,
        notes=[*_notes(execution), *_pairing_notes(execution, found)],
    )


def unit_of(spec: ExternalSpec) -> str:
    """Return the unit of losses; a metric to maximize is negated."""
    name = metric_of(spec.metric).name if spec.metric else ""
    return f"{'minus ' * spec.maximize}{spec.unit or name or 'of the metric'}"


def worded(text: str, spec: ExternalSpec) -> str:
    """Return a sentence on a loss in the words of the metric."""
    text = re.sub(r"learnt no more than a bigram model \([^)]*\)", "diverged at all rates", text)
    text = re.sub(r"learnt more than a bigram model \([^)]*\)", "trained at any rate", text)
    if not spec.maximize:
        return text
    swapped = {"lower": "higher", "higher": "lower", "loss": "metric", "minus ": ""}
    names = sorted(spec.variants, key=len, reverse=True)  # which stay as they are
    pattern = "|".join([*map(re.escape, names), *swapped])
    return re.sub(pattern, lambda match: swapped.get(match[0], match[0]), text)


def multiplier_of(effect: Effect, execution: Execution) -> Multiplier | None:
    """Return the compute multiplier, None with fewer than two pairs at shorter horizons."""
    spec, names = execution.spec, (execution.baseline, effect.variant)
    lengths = [execution.steps(share) or 0 for share in (*spec.horizons, 1.0)]
    cost, own = (spec.cost_per_step.get(name, 1.0) for name in names)
    baseline, variant = (execution.curves(name) for name in names)
    return multiplier(effect, spec.horizons, lengths, baseline, variant, cost / own)


def correlations(
    execution: Execution, found: Sequence[Effect]
) -> Iterator[tuple[str, int, float, float]]:
    """Yield each variant's number of pairs, correlation with the baseline over seeds, and
    standard deviation of a paired difference over an unpaired one."""
    compared = execution.standing().compared
    for name, pairs in ((effect.variant, effect.seeds) for effect in found):
        own, base = (
            np.array(
                [execution.loss(Run(n, s, compared[n][s][0], execution.spec.steps)) for s in pairs]
            )
            for n in (name, execution.baseline)
        )
        if len(pairs) > 2 and min(np.ptp(own), np.ptp(base)) > 0:
            gain = math.sqrt(float(np.var(own - base) / (np.var(own) + np.var(base))))
            yield name, len(pairs), float(np.corrcoef(own, base)[0, 1]), gain
        elif len(pairs) > 2:
            yield name, len(pairs), math.nan, math.nan


def _pairing_notes(execution: Execution, found: Sequence[Effect]) -> Iterator[str]:
    """Warn of variants with seeds that do not pair."""
    for name, pairs, correlation, _ in correlations(execution, found):
        if math.isnan(correlation):
            yield f"{name} or the baseline: all seeds have one loss; does {{seed}} reach the trainer?"
        elif pairs >= FEWEST and correlation < PAIRED:
            yield (
                f"Seeds of {name} and the baseline do not pair: their correlation over {pairs} seeds is "
                f"{correlation:.2f}. Intervals hold, but are no narrower than those of unpaired runs. Pairs need one "
                "seed for the initial weights and for the order of the data."
            )


def _notes(execution: Execution) -> Iterator[str]:
    spec, results = execution.spec, execution.results
    if spec.maximize:
        yield "The metric is maximized: numbers below are of the negated metric, so that lower is better."
    if spec.given:
        yield "Losses were given. The interval holds if the number of seeds was chosen before they were seen."
    if number := sum(map(execution.diverged, results)):
        yield f"{number} of {len(results)} runs diverged; each counts as the highest loss of the study."
    if execution.left_out:
        yield f"{execution.left_out} was reached: the runs that were still wanted are left out."
    for run, values in results.items():
        if run.twin:
            off = abs(execution.value(run) - execution.value(run._replace(twin=False)))
            same = "seeds pair no better than that" if off else "the trainer is deterministic"
            yield f"Two runs of one seed, {run.steps or 'all'} steps, differ by {off:.3g}: {same}."
        step = values["readings"][-1].step
        if run.steps == spec.steps and run.steps and step and not 0.5 <= step / run.steps <= 1.5:
            yield (
                f"The last value of a run of {run.steps:,} steps is of step {step:,}: does {{steps}} reach "
                "the trainer?"
            )
            return


def _not_controlled(spec: ExternalSpec) -> Iterator[tuple[str, str]]:
    """Yield settings that are not controlled, with the reason."""
    yield "parameters, FLOPs and memory", "variants of another trainer are not matched"
    if spec.given:
        yield "everything else", "known to the maker of the file only"
    if not spec.tune_lr:
        yield "learning rates", "as given: not tuned, each variant is judged at its own"
    if spec.steps is None:
        yield "compute", "no {steps} in the command: no shorter horizons, no multiplier"
        return
    if not spec.cost_per_step:
        yield "compute of a step", "no --cost-per-step is given: equal for all variants"
    yield (
        "schedule",
        "{steps} must set its end too, or shorter runs say nothing of shorter horizons",
    )


def _facts(execution: Execution, results: StudyResults) -> list[doc.Fact]:
    spec, pairs = execution.spec, len({found.seed for found in results.replicates})
    looked = "one look at a fixed sample" if spec.given else f"of {spec.seeds} at most"
    return [
        doc.Fact("Baseline", execution.baseline),
        doc.Fact("Metric", spec.metric or "given", results.unit),
        doc.Fact("Steps of a run", f"{spec.steps:,}" if spec.steps else "set by the trainer"),
        doc.Fact("Pairs", str(pairs), looked),
        doc.Fact("Learning rates", f"tuned from {spec.lr:g}" if spec.tune_lr else "as given"),
        doc.Fact("Margin", spec.margin),
    ]


def page(execution: Execution, results: StudyResults) -> doc.Page:
    """Return the page of a study."""
    spec, series = execution.spec, series_of([*execution.spec.variants])
    head = headline(results.effects, execution.baseline, doc.HEADLINE_WORDS)
    pairing = [
        doc.Row((name, str(pairs), fmt.signed(r, 2), fmt.percent(gain) if gain == gain else "–"))
        for name, pairs, r, gain in correlations(execution, results.effects)
    ]
    caption = (
        "Correlation of the losses of a variant and the baseline over seeds, and the standard deviation of a "
        "difference as a share of that of unpaired runs. Below 100 %, pairs save runs."
    )
    columns = ("Variant", "Pairs", "Correlation", "Deviation of a difference")
    unequal = [doc.Row(row) for row in _not_controlled(spec)]
    controlled = doc.Facts({"": _facts(execution, results)})
    reproduce = [
        doc.Verbatim("Command", results.command),
        doc.Verbatim("study.toml", spec.toml(), file="study.toml", folded=True),
    ]
    sections = (
        effects_chart.effects_section(results, series),
        doc.Section("Pairing", [doc.Table(caption, columns, pairing)]) if pairing else None,
        horizons.horizons_section(results, series),
        curves.curves_section(results, series),
        learning_rates.learning_rates_section(results, series) if spec.tune_lr else None,
        doc.Section(
            "Controlled", [controlled, doc.Table("Not controlled.", ("What", "Why"), unequal)]
        ),
        runs_section(results),
        doc.Section("Reproduce", reproduce) if results.command else None,
    )
    axes = [doc.Axis("step", "Steps", "steps of training", "step %{x:,.0f}")]
    if any(r.tokens for values in execution.results.values() for r in values["readings"]):
        axes.append(doc.Axis("tokens", "Tokens", "tokens trained on", "%{x:.4s} tokens"))
    if spec.cost_per_step:
        axes.append(doc.Axis("flops", "Compute", "compute by --cost-per-step", "%{x:.4s}"))
    ended = f"This study is not complete: {len(execution.results)} runs have ended. All that follows may still change."
    return doc.Page(
        title=f"{spec.name}: {head}",
        kicker=f"archwright study {spec.name}",
        verdict=head,
        verdict_rest=f"{results.verdict.removeprefix(head).lstrip(':;,. ')} {results.scope}",
        notice="" if results.complete else ended,
        notes=results.notes,
        axes=axes,
        sections=[_reworded(section) for section in sections if section],
        footer=f"{doc.MADE_BY} from {results.folder}. One file, which requests nothing.",
    )


def _reworded(section: doc.Section) -> doc.Section:
    """Return a section without words on held-out text and tokens."""
    blocks: list[Any] = []
    for block in section.blocks:
        for name in ("title", "unit", "note", "caption"):
            text = getattr(block, name, "")
            for old, new in WORDS.items():
                text = text.replace(old, new)
            if text:
                block = replace(block, **{name: text})  # type: ignore[arg-type]
        if isinstance(block, doc.Chart) and block.name == "horizons":
            axis = {**block.layout["xaxis"], "title": {"text": "steps of a run"}}
            block = replace(block, layout={**block.layout, "xaxis": axis})
        blocks.append(block)
    return replace(section, blocks=blocks)


def write(execution: Execution, command: str, complete: bool) -> StudyResults:
    """Write tables and page into the folder of a study; return its results."""
    results = results_of(execution, command, complete)
    write_tables(results, results.folder)
    atomic_write(execution.folder / "report.html", page(execution, results).html())
    return results
