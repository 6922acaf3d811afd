"""The command `archwright report`: write the page of one or more runs."""

from collections.abc import Sequence
from pathlib import Path

from archwright.cli.parser import Parser, check_parts

ABOUT = """\
Write a run's page: its result, curves, choices, sample and environment, in one file that needs no network.
For several runs, write a page with overlaid curves and the differences between their specs.
For a study, write its page again, or with --paper what a paper needs: a table of effects, charts, methods and
references as LaTeX. Nothing is trained, and no text is read."""

EXAMPLES = """\
  archwright report runs/demo
  archwright report runs/demo runs/other
  archwright report runs/* --out all.html
  archwright report studies/norm-placement --paper paper"""

OVERLAY = "overlay.html"
"""Default page of several runs, in the current folder."""
STUDY = "study.toml"
"""The file that makes a folder that of a study."""


def run(words: Sequence[str]) -> int:
    """Write the page of one or more runs, and print its path."""
    parser = Parser("report", ABOUT, EXAMPLES)
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="a run folder, or several; or the folder of a study"
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help=f"file of the page (default: report.html in the folder of a run, {OVERLAY} for several)",
    )
    parser.add_argument(
        "--paper",
        metavar="DIR",
        help="of a study: write main.tex, effects.tex, methods.tex, references.bib and charts as PDF and SVG into this "
        "folder (extra paper)",
    )
    options, parts = parser.parse_with_parts(words)
    from archwright.reporting.overlay import write_overlay
    from archwright.reporting.page import write_report
    from archwright.runs import RunFolder
    from archwright.spec.errors import UserError

    first = RunFolder(options.runs[0])
    alone = len(options.runs) == 1 and not first.exists
    if options.paper or (alone and (first.path / STUDY).is_file()):
        return _study(options.runs, options.out, options.paper)
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


def _study(folders: Sequence[str], out: str | None, paper: str | None) -> int:
    from archwright.lab.report.page import study_page
    from archwright.lab.report.paper import write_paper
    from archwright.lab.report.saved import open_study
    from archwright.reporting.document import write_page
    from archwright.spec.errors import UserError

    if paper and (out or len(folders) > 1):
        raise UserError("--paper: expected the folder of one study, without --out")
    if paper:
        print(*write_paper(folders[0], paper), sep="\n")
    else:
        path = Path(out) if out else Path(folders[0]) / "report.html"
        print(write_page(study_page(open_study(folders[0])), path))
    return 0
