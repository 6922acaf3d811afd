"""archwright report"""

from collections.abc import Sequence

from archwright.cli.parser import Parser, add_parts_option, check_run_parts, load_parts

ABOUT = """\
Write a run's page: its result, curves, choices, sample and environment, in one file that needs no network."""


def run(words: Sequence[str]) -> int:
    """Write report.html and print its path."""
    parser = Parser("report", ABOUT, "  archwright report runs/demo")
    parser.add_argument("run", metavar="RUN", help="a run folder")
    add_parts_option(parser)
    options = parser.parse(words)
    parts = load_parts(options.parts)
    from archwright.reporting.page import write_report
    from archwright.runs import RunFolder

    check_run_parts(options.run, parts)
    print(write_report(RunFolder.open(options.run)))
    return 0
