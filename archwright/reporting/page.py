"""Report of a run: one page with its result, settings, and the command that repeats it."""

import math
import re
from pathlib import Path

from archwright import format as fmt
from archwright.files import atomic_write
from archwright.reporting import curves
from archwright.reporting.document import MADE_BY, Bar, Bars, Block, Page, write_page
from archwright.reporting.history import History, read_history
from archwright.reporting.result import Result, notice, result_of, verdict
from archwright.reporting.sections import SECTIONS
from archwright.reporting.thinning import smoothing_of
from archwright.runs import RunFolder


def write_report(run_folder: RunFolder | str | Path, path: str | Path | None = None) -> Path:
    """Write the page of a run and return its path.

    The default path is `report.html` in the run folder. The page is a single file without network requests. Stopped
    runs and runs without an evaluation have a page with a notice.
    """
    if not isinstance(run_folder, RunFolder):
        run_folder = RunFolder.open(run_folder)
    if path is not None:
        return write_page(run_page(read_history(run_folder)), Path(path))
    run_folder.sweep(run_folder.report_file)
    atomic_write(run_folder.report_file, run_page(read_history(run_folder)).html())
    return run_folder.report_file


def run_page(history: History) -> Page:
    """Build the page of a run."""
    result = result_of(history)
    head, rest = verdict(history, result)
    return Page(
        title=f"{history.name}: {head}",
        kicker=f"archwright run {history.name}",
        verdict=head,
        verdict_rest=_TOGETHER.sub(lambda match: match[0].replace(" ", "\N{NO-BREAK SPACE}"), rest),
        notice=notice(history, result),
        opening=_bars(history, result),
        axes=curves.axes([history]),
        smoothing=smoothing_of(len(history.train["step"])),
        sections=[section for make in SECTIONS if (section := make(history, result))],
        footer=f"{MADE_BY} from {history.folder}. One file without network requests.",
    )


_TOGETHER = re.compile(r"\d+ (?:d|h|min) \d+ (?:h|min|s)\b|[\d.]+ s\b|\w+ -9e?\b")
"""Durations and names of compressors, with blanks that must not break a line."""


def _bars(history: History, result: Result) -> list[Block]:
    """Draw bits per byte of the model and of the compressors."""
    bits = result.bits_per_byte
    if bits is None or not math.isfinite(bits) or not history.compressors:
        return []
    reached = {"this model": bits}
    reached |= {line["name"]: line["bits_per_byte"] for line in history.compressors}
    bars = [
        Bar(name, value, fmt.decimal(value), strong=name == "this model")
        for name, value in sorted(reached.items(), key=lambda item: item[1])
    ]
    return [Bars("Bits per byte of held-out text, lower is better", bars)]
