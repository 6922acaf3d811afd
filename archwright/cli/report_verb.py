"""The command `archwright report`: write the page of one or more runs."""

from collections.abc import Sequence
from pathlib import Path

from archwright.cli.parser import Parser, check_parts

ABOUT = """\
Write a run's page: its result, curves, choices, sample and environment, in one file that needs no network.
For several runs, write a page with overlaid curves and the differences between their specs."""

EXAMPLES = """\
  archwright report runs/demo
  archwright report runs/demo runs/other
  archwright report runs/* --out all.html"""

OVERLAY = "overlay.html"
"""Default page of several runs, in the current folder."""


def run(words: Sequence[str]) -> int:
    """Write the page of one or more runs, and print its path."""
    parser = Parser("report", ABOUT, EXAMPLES)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a run folder, or several")
    parser.add_argument(
        "--out",
        metavar="FILE",
        help=f"file of the page (default: report.html in the folder of a run, {OVERLAY} for several)",
    )
    options, parts = parser.parse_with_parts(words)
    from archwright.reporting.overlay import write_overlay
    from archwright.reporting.page import write_report
    from archwright.runs import RunFolder
    from archwright.spec.errors import UserError

    folders: list[RunFolder] = []
    lines: list[str] = []
    for name in options.runs:
        try:
            folder = RunFolder.open(name)
            check_parts(folder, parts)
            folders.append(folder)
        except UserError as error:
            lines += error.lines
    if lines:
        raise UserError(*lines)
    path = Path(options.out) if options.out else None
    if len(folders) == 1:
        print(write_report(folders[0], path))
    else:
        print(write_overlay(folders, path or Path(OVERLAY)))
    return 0
