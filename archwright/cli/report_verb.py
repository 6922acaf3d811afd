"""archwright report"""

from collections.abc import Sequence

from archwright.cli.parser import Parser, check_parts

ABOUT = """\
Write a run's page: its result, curves, choices, sample and environment, in one file that needs no network."""


def run(words: Sequence[str]) -> int:
    """Write report.html and print its path."""
    parser = Parser("report", ABOUT, "  archwright report runs/demo")
    parser.add_argument("run", metavar="RUN", help="a run folder")
    options, parts = parser.parse_with_parts(words)
    from archwright.reporting.page import write_report
    from archwright.runs import RunFolder

    folder = RunFolder.open(options.run)
    check_parts(folder, parts)
    print(write_report(folder))
    return 0
