"""Terminal output of a run: its result, or its resolved values."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from archwright import format as fmt
from archwright.format import printable
from archwright.reporting.history import History, read_history
from archwright.reporting.result import (
    Result,
    closing_words,
    device,
    no_peak,
    notice,
    result_of,
    right_answers,
    second_task,
)
from archwright.runs import RunFolder

if TYPE_CHECKING:
    from rich.console import Console

Line = tuple[str, str, str]
"""Label, value and comment."""

SAMPLE_LINES = 12
"""Maximum number of printed lines of the sample."""

NARROWEST, WIDEST_SAMPLE = 20, 100


def print_result(run_folder: RunFolder, console: Console | None = None) -> None:
    """Print the result, a sample, and the paths of a run.

    Colours require a terminal. Paths are never wrapped.
    """
    console = console or _console()
    history = read_history(run_folder)
    result = result_of(history)
    console.print()
    _print_lines(console, [_quality(history, result), _effort(history, result)])
    if comment := notice(history, result):
        console.print(printable(textwrap.fill(comment, console.width - 2)) + "\n", markup=False)
    if history.sample.strip():
        console.print("sample", style="dim")
        console.print(_excerpt(history.sample, console.width) + "\n", markup=False)
    report = run_folder.report_file
    paths = [("run", str(run_folder.path), "")]
    _print_lines(console, [paths + ([("report", str(report), "")] if report.exists() else [])])


def print_resolved(pairs: Iterable[tuple[str, object]], console: Console | None = None) -> None:
    """Print dotted keys and values, grouped by the first part of the key, as in `--dry-run`."""
    groups: dict[str, list[Line]] = {}
    for key, value in pairs:
        group = key.split(".")[0] if "." in key else ""
        groups.setdefault(group, []).append((key, str(value), ""))
    _print_lines(console or _console(), list(groups.values()))


def _quality(history: History, result: Result) -> list[Line]:
    last = result.held_out
    if not last:
        loss = result.train_loss
        mean = f"{history.loss_unit}, {closing_words(result.steps)}"
        trained = [] if loss is None else [("training loss", fmt.loss(loss), mean)]
        return [*trained, ("held-out loss", "none", "not evaluated yet")]
    if task := history.task:
        least = f", {fmt.loss(task['floor'])} at least" if task["floor"] else ""
        return [
            ("accuracy", *right_answers(last, task)),
            ("held-out loss", fmt.loss(last["nats_per_token"]), f"{history.loss_unit}{least}"),
        ]
    compressors = sorted(history.compressors, key=lambda line: float(line["bits_per_byte"]))
    bits = result.bits_per_byte
    note = "this model" if compressors else ""
    bits_line = [] if bits is None else [("bits per byte", fmt.decimal(bits), note)]
    return [
        ("held-out loss", fmt.loss(last["nats_per_token"]), history.loss_unit),
        (
            "perplexity",
            fmt.significant(last["perplexity"], 4),
            f"{history.loss_unit.removeprefix('nats ')}, base e",
        ),
        *second_task(last, history),
        *bits_line,
        *(("", fmt.decimal(line["bits_per_byte"]), line["name"]) for line in compressors),
    ]


def _effort(history: History, result: Result) -> list[Line]:
    steps = f"{fmt.exact(result.steps)} step{'s' if result.steps != 1 else ''}"
    share = result.utilisation
    of_peak = f"{fmt.percent(share)} of the measured peak" if share else ""
    of_peak = fmt.NO_UTILISATION if no_peak(history) else of_peak
    peak = ", ".join(filter(None, ("tokens/s, median", of_peak)))
    model, speed = result.num_parameters, result.tokens_per_second
    name = device(history)
    return [
        *([("model", fmt.count(model), "parameters")] if model else []),
        (
            "training",
            fmt.count(result.tokens),
            f"tokens in {steps}, {fmt.duration(result.seconds)}",
        ),
        *([("speed", fmt.count(speed), peak)] if speed else []),
        *([("device", "", name)] if name else []),
    ]


def _print_lines(console: Console, groups: Sequence[Sequence[Line]]) -> None:
    """Print groups of lines in aligned columns, each followed by an empty line."""
    from rich.text import Text

    lines = [line for group in groups for line in group]
    label_width = max((len(label) for label, _, _ in lines), default=0)
    value_width = max((len(value) for _, value, comment in lines if comment), default=0)
    for group in groups:
        for label, value, comment in group:
            text = Text(printable(f"{label:{label_width}}  "), style="dim")
            text.append(
                printable(f"{value:>{value_width}}" if comment else value), style="not dim bold"
            )
            text.append(printable(f"  {comment}") if comment else "", style="not dim")
            text.rstrip()
            console.print(text, soft_wrap=True)
        console.print()


def _excerpt(sample: str, width: int) -> str:
    """Return the first lines of the sample, indented and printable."""
    wrapped: list[str] = []
    for line in printable(sample).expandtabs(4).strip("\n").split("\n"):
        wrapped += textwrap.wrap(
            line, min(width, WIDEST_SAMPLE) - 4, drop_whitespace=False, replace_whitespace=False
        ) or [""]
    shown = wrapped[:SAMPLE_LINES] + (["..."] if len(wrapped) > SAMPLE_LINES else [])
    return textwrap.indent("\n".join(line.rstrip() for line in shown), "  ")


def _console() -> Console:
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise  # rich would exit with a failure status

    console = Piped(highlight=False)
    console.width = max(console.width, NARROWEST)
    return console
