"""How verbs read their words: options anywhere, dotted assignments between them."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from archwright.format import columns
from archwright.spec.errors import UserError, nearest


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are user errors like all others."""

    def __init__(self, verb: str, about: str, examples: str = "") -> None:
        super().__init__(
            prog=f"archwright {verb}",
            description=about,
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            message = self._unknown(unknown)
        # Assignments are many or none, but argparse counts them among what is required.
        message = message.removesuffix(", KEY=VALUE")
        raise UserError(f"{message}{'' if message[-1] == '?' else '.'} See {self.prog} --help")

    def _unknown(self, words: str) -> str:
        if not words.startswith("-"):
            return f"{words}: more words than {self.prog} takes"
        message = f"{words}: no such option"
        if any(action.metavar == "KEY=VALUE" for action in self._actions):
            message += "; values are set as key=value, without dashes"
        hint = nearest(words.split()[0].partition("=")[0], self._option_string_actions)
        return f"{message}.{hint}" if hint else message

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the options; they may stand before, between and after the other words."""
        return self.parse_intermixed_args(words)


def add_parts_option(parser: Parser) -> None:
    """Let a verb take choices from outside the package."""
    parser.add_argument(
        "--parts",
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file whose choices join the package's; it is run, so trust it",
    )


def load_parts(files: Sequence[str]) -> dict[str, str]:
    """Run files of choices; return the hash of each by its name, which a run records.

    Raises:
        UserError: a file that is missing or fails, one line each.
    """
    if not files:
        return {}
    from archwright.plugins import load_parts_file

    found: dict[str, str] = {}
    lines: list[str] = []
    for file in files:
        try:
            found[Path(file).name] = load_parts_file(Path(file))
        except UserError as error:
            lines += error.lines
    if lines:
        raise UserError(*lines)
    return found


def check_run_parts(run: str, given: Mapping[str, str]) -> None:
    """Ask for the files of choices that the run in a folder was made with, if it was.

    Raises:
        UserError: no run there, or a file that is not given, one line each.
    """
    from archwright.runs import RunFolder

    folder = RunFolder.open(run)
    if folder.parts:
        from archwright.cli.parts_files import check_parts

        check_parts(folder, given, same=False)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns; the last column takes what is left of the line."""
    print("\n".join(columns(rows, wrapped=[len(rows[0]) - 1], width=terminal_width())) + "\n")


def terminal_width() -> int:
    """Return the columns of the terminal; 100 where there is none."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns
