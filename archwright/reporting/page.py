"""The report of a run: one page that says what was reached, how, by what, and how to repeat it."""

from pathlib import Path

from archwright.reporting import curves, words
from archwright.reporting.document import Bar, Bars, Block, Page
from archwright.reporting.record import Record, read_record
from archwright.reporting.result import Result, notice, result_of, verdict
from archwright.reporting.sections import SECTIONS
from archwright.runs import RunFolder


def write_report(run_folder: RunFolder) -> Path:
    """Write `report.html` into a run folder and return its path.

    The page is one file that requests nothing. A run without an evaluation, of one step, or stopped
    early has a page too, which says so.
    """
    path = run_folder.path / "report.html"
    path.write_text(run_page(read_record(run_folder)).html(), encoding="utf-8")
    return path


def run_page(record: Record) -> Page:
    """Lay a run out as a page."""
    result = result_of(record)
    head, rest = verdict(record, result)
    return Page(
        title=f"{record.name}: {head}",
        kicker=f"archwright run {record.name}",
        verdict=head,
        verdict_rest=rest,
        notice=notice(record, result),
        opening=_bars(record, result),
        axes=curves.axes(record),
        sections=[section for make in SECTIONS if (section := make(record, result))],
        footer=f"Made by archwright from {record.folder}. This page is one file and requests nothing.",
    )


def _bars(record: Record, result: Result) -> list[Block]:
    """Draw the model's bits per byte beside those of the compressors."""
    if result.bits_per_byte is None or not record.compressors:
        return []
    reached = {"this model": result.bits_per_byte}
    reached |= {line["name"]: line["bits_per_byte"] for line in record.compressors}
    bars = [
        Bar(name, value, words.decimal(value), strong=name == "this model")
        for name, value in sorted(reached.items(), key=lambda item: item[1])
    ]
    return [Bars("Bits per byte of held-out text, fewer is better", bars)]
