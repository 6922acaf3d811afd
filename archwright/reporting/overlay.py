"""Page of several runs: overlaid curves and differences between specs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from archwright import format as fmt
from archwright.reporting.comparability import Compared, compared
from archwright.reporting.curves import axes
from archwright.reporting.document import (
    HEADLINE_WORDS,
    MADE_BY,
    Block,
    Key,
    Page,
    Row,
    Section,
    Series,
    Table,
    Text,
    Verbatim,
    write_page,
)
from archwright.reporting.history import History, read_history
from archwright.reporting.overlay_curves import charts
from archwright.reporting.result import closing_words, device, result_of
from archwright.reporting.sections import command
from archwright.reporting.styles import DASHES, SYMBOLS, series_of
from archwright.reporting.thinning import smoothing_of
from archwright.runs import RunFolder
from archwright.spec.read import differing

IN_COLUMNS = 3
"""Maximum number of runs with separate columns in the table of differences."""
NO_VERDICT = (
    "These are single runs, not a verdict: another seed may change a loss by as much. "
    "archwright compare trains several seeds and reports which differences exceed the noise."
)


def write_overlay(folders: Sequence[RunFolder], path: Path) -> Path:
    """Write a page of several runs and return its path.

    Raises:
        UserError: The runs cannot be compared, or the file at `path` is not an archwright page.
    """
    return write_page(overlay_page([read_history(folder) for folder in folders]), path)


def overlay_page(histories: Sequence[History]) -> Page:
    """Build the page of several runs.

    Raises:
        UserError: The runs cannot be compared.
    """
    comparison = compared(histories)
    styles = _styles([*comparison.runs])
    head, rest = _verdict(comparison)
    curves: list[Block] = [Key([*styles.values()]), *charts(comparison, styles)]
    return Page(
        title=f"{', '.join(comparison.runs)}: {head}",
        kicker=f"archwright report of {len(histories)} runs",
        verdict=head,
        verdict_rest=rest,
        notice=" ".join(_unfinished(comparison.runs)),
        notes=comparison.notes,
        axes=axes(histories),
        smoothing=smoothing_of(max(len(h.train["step"]) for h in histories)),
        sections=[
            Section("Runs", [_runs(comparison)]),
            Section("Curves", curves),
            Section("Differences", [_differences(comparison.runs)]),
            Section("Reproduce", [Verbatim(n, command(h)) for n, h in comparison.runs.items()]),
        ],
        footer=f"{MADE_BY} from {fmt.listed([h.folder for h in histories])}. One file without network requests.",
    )


def _styles(names: Sequence[str]) -> dict[str, Series]:
    """Return the style of each run.

    Runs differ in dash, because per-step curves have no markers. Markers change only after all dashes are used.
    """
    return {
        name: replace(series, dash=DASHES[i % 4], symbol=SYMBOLS[i // 4 % 4])
        for i, (name, series) in enumerate(series_of(names, "run").items())
    }


def _verdict(comparison: Compared) -> tuple[str, str]:
    """Return the headline of at most `HEADLINE_WORDS` words, and the rest of the verdict."""
    number = len(comparison.runs)
    if not comparison.same_text:
        return f"{number} runs without comparable losses", NO_VERDICT
    task = next(iter(comparison.runs.values())).task
    column, unit, sign = _criterion(comparison)
    reached = {
        name: history.evals[-1].get(column, math.nan) if history.evals else math.nan
        for name, history in comparison.runs.items()
    }
    if not all(map(math.isfinite, reached.values())):
        return f"{number} runs, not all evaluated", NO_VERDICT
    shown = fmt.accuracy if task else fmt.decimal
    ordered = sorted(reached, key=lambda name: sign * reached[name])
    ends = ", ".join(f"{name} {shown(reached[name])}" for name in ordered)
    rest = f"{unit} of held-out {'examples' if task else 'text'}: {ends}. {NO_VERDICT}"
    if not comparison.same_tokens:
        return f"{number} runs, trained on different numbers of tokens", rest
    value = shown(reached[ordered[0]])
    best = [name for name in ordered if shown(reached[name]) == value]
    place = "highest" if sign < 0 else "lowest"
    heads = [f"{best[0]} ends {place}: {value} {unit}"] if len(best) == 1 else []
    heads.append(f"{len(best)} of {number} runs end {place}: {value} {unit}")
    head = next((text for text in heads if len(text.split()) <= HEADLINE_WORDS), heads[-1])
    return head, rest


def _criterion(comparison: Compared) -> tuple[str, str, int]:
    """Return the criterion that ranks the runs: column, unit, and 1 if less is better, else -1."""
    histories = [*comparison.runs.values()]
    if histories[0].task and all("accuracy" in h.evals[-1] for h in histories if h.evals):
        return "accuracy", "of answers right", -1
    if all("bits_per_byte" in line for h in histories for line in h.evals[-1:]):
        return "bits_per_byte", "bits per byte", 1
    return "nats_per_token", comparison.unit, 1


def _unfinished(runs: Mapping[str, History]) -> list[str]:
    return [
        f"{name} {'was stopped' if history.state == 'stopped' else 'has not finished'} at step "
        f"{fmt.exact(history.num_steps)}"
        + (f" of {fmt.exact(history.planned_steps)}." if history.planned_steps else ".")
        for name, history in runs.items()
        if history.state != "finished"
    ]


def _runs(comparison: Compared) -> Table:
    head = (
        "Run",
        f"Held-out loss, {comparison.unit}",
        *([] if comparison.in_bits else ["Bits per byte"]),
        "Training loss",
        "Parameters",
        "Tokens",
        "Steps",
        "Time",
        "Tokens per second, median",
        "Device",
    )
    rows = [_run(name, history, comparison) for name, history in comparison.runs.items()]
    return Table("Results of each run. Held-out losses are from the last evaluation.", head, rows)


def _run(name: str, history: History, comparison: Compared) -> Row:
    result = result_of(history)
    bits, last = result.bits_per_byte, result.held_out
    loss = (bits if comparison.in_bits else last["nats_per_token"]) if last else None
    train = None if result.train_loss is None else f"{fmt.loss(result.train_loss)} nats"
    return Row(
        (
            name,
            "–" if loss is None else fmt.loss(loss),
            *([] if comparison.in_bits else ["–" if bits is None else fmt.decimal(bits)]),
            "–" if train is None else f"{train}\n{closing_words(result.steps)}",
            "–" if result.num_parameters is None else fmt.exact(result.num_parameters),
            fmt.exact(result.tokens),
            fmt.exact(result.steps),
            fmt.duration(result.seconds),
            "–" if result.tokens_per_second is None else fmt.count(result.tokens_per_second),
            device(history) or "–",
        )
    )


def _differences(runs: Mapping[str, History]) -> Table | Text:
    """List the differences between specs, in columns if there are few runs."""
    differences = {
        path: values
        for path, values in differing([history.spec for history in runs.values()]).items()
        if path.split(".")[0] not in ("tensorboard", "probes")
    }
    if not differences:
        return Text("Their specs are equal.")
    number = f"{len(differences)} value{'s' * (len(differences) != 1)}"
    caption = f"Differences in spec.toml: {number}. All other values are equal."
    if len(runs) <= IN_COLUMNS:
        rows = [Row((path, *values)) for path, values in differences.items()]
        return Table(caption, ("Key", *runs), rows, even=True)
    rows = []
    for path, values in differences.items():
        holders = {v: [n for n, x in zip(runs, values, strict=True) if x == v] for v in values}
        lines = [f"{value}: {fmt.listed(names)}" for value, names in holders.items()]
        rows.append(Row((path, "\n".join(lines))))
    return Table(caption, ("Key", "Value: runs"), rows)
