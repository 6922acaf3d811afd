"""Sections on cost, controlled variables, and reproduction."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean, median

from archwright import format as fmt
from archwright.lab.report.csv_files import state, tables
from archwright.lab.results import ControlledVariable, RunResult, StudyResults, compared_of
from archwright.reporting.document import Block, Fact, Facts, Row, Section, Table, Text, Verbatim
from archwright.spec.read import to_toml


def answers_section(results: StudyResults) -> Section | None:
    """Return the share of correct answers per variant; None for a study on documents."""
    task, found = results.task, results.accuracies
    if task is None or not found:
        return None
    rows = [
        Row((name, *(fmt.accuracy(of(shares)) for of in (fmean, min, max)), str(len(shares))))
        for name, shares in found.items()
    ]
    least = ""
    if task.floor:
        floor = fmt.loss(task.floor)
        least = f" Over all examples there could be, no model comes below {floor} nats per answer."
    caption = (
        f"Share of the answers of {task.name} that are right at the end of each seed's best run, on held-out examples; "
        f"{fmt.accuracy(task.chance)} are right by guessing.{least}"
    )
    return Section("Answers", [Table(caption, ("Variant", "Mean", "Least", "Most", "Seeds"), rows)])


def cost_section(results: StudyResults) -> Section:
    """State speed and memory, which no verdict on quality speaks of."""
    head = (
        "Variant",
        "Tokens per second",
        "Of the baseline's",
        "Training time",
        "Peak memory",
        "Non-embedding parameters",
        "All parameters",
        "FLOPs per token",
        "Cache of a sequence",
    )
    note = (
        "Medians over a variant's runs; memory is the highest. Speed is of the processor that trained, so it "
        "holds for this machine only, and no verdict above takes it into account. The cache is that of decoding "
        "after the context, in 16 bits, and states of recurrences in 32."
    )
    return Section("Speed and memory", [Table(note, head, _cost_rows(results))])


def held_section(results: StudyResults) -> Section:
    """Return the study's scale, its controlled variables, and the uncontrolled ones."""
    equal = [_held_row(held) for held in results.held if held.equal]
    unequal = [_held_row(held) for held in results.held if not held.equal]
    head = ("What", "Value")
    blocks: list[Block] = [Facts({"": _study_facts(results)})]
    if equal:
        blocks.append(Table("Controlled.", head, equal))
    if unequal:
        blocks.append(Table("Not controlled, or varied on purpose.", head, unequal))
    return Section("Controlled", blocks)


def changes_section(results: StudyResults) -> Section:
    """State how each variant differs from the baseline."""
    rows = [
        Row((variant.name, " ".join(variant.words), "\n".join(variant.changes) or "the baseline"))
        for variant in results.variants
    ]
    note = (
        f"What was asked for, and all that differs from {results.variants[0].name} as it was built."
    )
    return Section("Variants", [Table(note, ("Variant", "Asked for", "Changes"), rows)])


def runs_section(results: StudyResults) -> Section | None:
    """Return all runs with their commands and the files with all numbers; None without runs."""
    head = ("Variant", "Seed", "Rate", "Loss", "State", "Command")
    rows = [_run_row(run, results) for run in (*results.runs, *results.shorter_runs)]
    if not rows:
        return None
    number = f"All {len(rows)} runs with their commands"
    files = tables(results)
    note = (
        f"{fmt.listed(list(files))} in {results.folder} have all numbers of this page, unrounded."
    )
    return Section(
        "Runs",
        [
            Table("", head, rows, folded=number, commands=True),
            Text(note),
            *(Verbatim(name, text, file=name, folded=True) for name, text in files.items()),
        ],
    )


def reproduce_section(results: StudyResults) -> Section:
    """Give the command and the file that repeat the study."""
    name = f"{Path(results.folder).name or 'study'}.toml"
    return Section(
        "Reproduce",
        [
            Verbatim("Command", results.command),
            Verbatim(name, to_toml(results.study), file=name, folded=True),
        ],
    )


def _cost_rows(results: StudyResults) -> list[Row]:
    compared = {
        v.name: compared_of(_ended(results, v.name), results.study) for v in results.variants
    }
    speeds = {name: _median(r.tokens_per_second for r in runs) for name, runs in compared.items()}
    memory = {
        v.name: _finite(r.memory_bytes for r in _ended(results, v.name)) for v in results.variants
    }
    baseline = speeds[results.variants[0].name]
    return [
        Row(
            (
                variant.name,
                _known(speeds[variant.name], fmt.count),
                _known(speeds[variant.name] / (baseline or math.nan), fmt.percent),
                _known(_median(r.seconds for r in compared[variant.name]), fmt.duration),
                _known(max(memory[variant.name], default=math.nan), fmt.size),
                fmt.exact(variant.non_embedding),
                fmt.exact(variant.parameters),
                fmt.flops(variant.flops_per_token),
                fmt.size(variant.cache_bytes) if variant.cache_bytes else "–",
            )
        )
        for variant in results.variants
    ]


def _ended(results: StudyResults, name: str) -> list[RunResult]:
    return [run for run in results.runs if run.variant == name and not run.failed]


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _median(values: Iterable[float]) -> float:
    return median(_finite(values) or [math.nan])


def _known(value: float, note: Callable[[float], str]) -> str:
    return note(value) if math.isfinite(value) else "–"


def _study_facts(results: StudyResults) -> list[Fact]:
    study, baseline = results.study, results.variants[0]
    per_parameter = fmt.significant(results.tokens_per_run / baseline.non_embedding)
    tuning = len(study.tuning_seed_numbers)
    seeds = "one seed" if tuning == 1 else f"up to {tuning} seeds"
    whose = f"by {seeds}, not compared later," if tuning else "for each seed"
    lrs = f"tuned {whose} over {study.lr_grid_size} or more" if study.tune_lr else "fixed"
    pairs, planned = (
        sorted({len(effect.seeds) for effect in results.effects}),
        len(study.seed_numbers),
    )
    if study.widths or not pairs:
        pairs = [len({r.seed for r in results.replicates})]
    compared = " to ".join(str(number) for number in dict.fromkeys((pairs[0], pairs[-1])))
    of_planned = f", of {planned} planned" * (pairs != [planned])
    predicted = results.predicted_seconds
    known = math.isfinite(predicted) and predicted > 0
    estimated = f"{fmt.duration(predicted)} estimated" if known else ""
    return [
        Fact("Baseline", baseline.name),
        Fact("Tokens of a run", fmt.exact(results.tokens_per_run)),
        Fact("Tokens per parameter", per_parameter, "outside embedding and head"),
        Fact("Steps of a run", fmt.exact(results.steps)),
        Fact("Seeds", compared, f"compared in pairs{of_planned}"),
        Fact("Learning rates", lrs),
        Fact("Matched", MATCHED[study.match]),
        Fact("Held-out tokens", fmt.exact(results.evaluation_tokens)),
        Fact("Device", results.device),
        Fact("Wall time", _known(results.seconds, fmt.duration), estimated),
        *([Fact("Source of the question", study.source)] if study.source else []),
    ]


MATCHED = {
    "non_embedding": "non-embedding parameters",
    "parameters": "all parameters",
    "flops": "FLOPs per token",
    "none": "nothing",
}


def _held_row(held: ControlledVariable) -> Row:
    """Return a table row, with a line per value that differs between variants."""
    by_value: dict[str, list[str]] = {}
    for variant, value in held.by_variant.items():
        by_value.setdefault(value, []).append(variant)
    lines = [f"{value}: {', '.join(who)}" for value, who in by_value.items()]
    return Row((held.what, "\n".join([held.value, *lines] if held.value else lines)))


def _run_row(run: RunResult, results: StudyResults) -> Row:
    state_text = f"failed: {run.failed}" if run.failed else state(run, results)
    if not results.counts(run):
        state_text += ", run again at a lower rate"
    if 0 < run.tokens < results.tokens_per_run:
        state_text += f", {fmt.percent(run.tokens / results.tokens_per_run)} of the tokens"
    loss = fmt.loss(run.loss) if math.isfinite(run.loss) else "–"
    return Row(
        (
            run.variant,
            str(run.seed),
            fmt.short(run.lr) if run.lr else "–",
            loss,
            state_text,
            run.command,
        )
    )
