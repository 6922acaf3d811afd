"""The argument parser of all verbs. Options may have any position."""

import argparse
import os
import re
import shlex
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from archwright.format import columns
from archwright.spec.errors import UserError, nearest
from archwright.spec.other_names import GONE, OPTIONS

if TYPE_CHECKING:
    from archwright.runs import RunFolder

OPTION = re.compile(r"-(?!\d|\.\d)\S+$")
"""Pattern of options; values such as "- item", -1T and -.5 do not match."""


class ParserReady(Exception):  # noqa: N818 (no error)
    """A verb has declared its options on the parser, its argument, and a shell requests completions."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises a UserError for every mistake."""

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
        elif match := re.fullmatch(r"argument ([^:]+): (.*)", message, re.DOTALL):
            message = self._wrong_value(match[1].rpartition("/")[2], match[2])
        # argparse lists assignments as required, although there may be none.
        message = message.removesuffix(", KEY=VALUE")
        raise UserError(f"{message}{'' if message[-1] in '?.' else '.'} See {self.prog} --help")

    def _unknown(self, words: str) -> str:
        if not words.startswith("-"):
            prompt = f". Did you mean --prompt {shlex.quote(words)}?"
            hint = prompt if "--prompt" in self._option_string_actions else ""
            return f"{words}: more words than {self.prog} takes{hint}"
        message = f"{words}: no such option"
        option, _, value = words.replace("=", " ", 1).partition(" ")
        if why := GONE.get(option.removeprefix("--").removeprefix("no-").replace("-", "_")):
            return f"{option}: {why}"
        if any(action.metavar == "KEY=VALUE" for action in self._actions):
            from archwright.spec.overrides import key_meant
            from archwright.spec.run_spec import RunSpec

            name = option.lstrip("-").replace("-", "_")
            key = key_meant(RunSpec, name)
            fits = value and " " not in value and (key == name or key != "budget")  # --epochs 3
            if key == "budget" and value.isdecimal() and re.search("steps?$|iters?$", name):
                value, fits = f"{value}steps", True  # --max_steps 100
            example = f": {key}={value}" if key and fits else ""
            message += f"; values are set as key=value, without dashes{example}"
        # A value of another command may be an option here: --format json is --json.
        named = f"--{value}" if f"--{value}" in self._option_string_actions else option
        named = OPTIONS.get(named.lstrip("-"), named)
        hint = nearest(named, self._option_string_actions)
        return f"{message}.{hint}" if hint else message

    def _wrong_value(self, name: str, complaint: str) -> str:
        """Rephrase argparse's message about the value of an option or argument."""
        if complaint == "expected one argument":
            return f"{name}: expected a value after it"
        if complaint.startswith("ignored explicit argument"):
            return f"{name}: takes no value"
        number = re.fullmatch(r"invalid (int|float) value: '(.*)'", complaint)
        if number is not None:
            expected = "a whole number" if number[1] == "int" else "a number"
            return f'{name}: found "{number[2]}"; expected {expected}'
        actions = [a for a in self._actions if name in (*a.option_strings, a.metavar, a.dest)]
        choice = re.match(r"invalid choice: '(.*?)' \(", complaint)
        if choice is not None and actions and actions[0].choices is not None:
            choices = [*map(str, actions[0].choices)]
            expected = f"one of {', '.join(choices)}" if choices[1:] else choices[0]
            name = "" if name in choices else f"{name}: "
            return f'{name}found "{choice[1]}"; expected {expected}.{nearest(choice[1], choices)}'
        return f"{name}: {complaint}"

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words of a verb. Options may have any position."""
        if "_ARGCOMPLETE" in os.environ:
            raise ParserReady(self)
        return self.parse_args(words)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        return super().parse_known_args(self._options_first(args), namespace)

    def _options_first(self, words: Sequence[str]) -> list[str]:
        """Sort words for argparse: options with one value, positional words, other options.

        Values are joined to their options (--tokens=-1T), because argparse would parse -1T as an option."""
        first: list[str] = []
        others: list[str] = []
        last: list[str] = []
        option: argparse.Action | None = None
        for i, word in enumerate(words):
            if word == "--":
                return [*first, *others, *last, *words[i:]]
            action = self._option_string_actions.get(word.partition("=")[0])
            if action is not None:
                option = action if action.nargs != 0 and "=" not in word else None
                (last if option else first).append(word)
            elif option is None or OPTION.match(word):
                option = None
                others.append(word)
            elif option.nargs is None:
                option = None
                first.append(f"{last.pop()}={word}")
            else:
                last.append(word)
        return [*first, *others, *last]

    def parse_with_parts(self, words: Sequence[str]) -> tuple[argparse.Namespace, dict[str, str]]:
        """Parse words and run --parts files; return options and file hashes.

        Raises:
            UserError: missing or failing files.
        """
        add_parts_option(self)
        options = self.parse(words)
        hashes: dict[str, str] = {}
        lines: list[str] = []
        for file in options.parts:
            from archwright.plugins import load_parts_file

            try:
                hashes[Path(file).name] = load_parts_file(Path(file))
            except UserError as error:
                lines += error.lines
        if lines:
            raise UserError(*lines)
        return options, hashes


def add_parts_option(parser: Parser) -> None:
    """Add the option --parts, for choices from outside the package."""
    parser.add_argument(
        "--parts",
        action="append",
        default=[],
        metavar="FILE|PACKAGE",
        help="choices to add: a Python file, such as archwright new writes, a folder with __init__.py, or an installed "
        "module; it is executed, so trust it",
    )


def check_parts(folder: "RunFolder", hashes: Mapping[str, str], *, same: bool = False) -> None:
    """Compare --parts files with a run's records; warn of changes.

    Raises:
        UserError: missing files, or changed files if `same`.
    """
    lines = []
    for name, digest in folder.parts.items():
        if name not in hashes:
            lines.append(f"{folder.path} was made with choices of {name}; add --parts {name}")
        elif hashes[name] != digest and same:
            lines.append(
                f"--parts {name}: not the file that {folder.path} was made with (SHA-256 "
                f"{hashes[name][:12]}, not {digest[:12]}); give that one, or train with another --out"
            )
        elif hashes[name] != digest:
            warnings.warn(f"{name} has changed since {folder.path} was made with it", stacklevel=2)
    if lines:
        raise UserError(*lines)


def as_options(error: UserError, settings: Collection[str]) -> UserError:
    """Rename the settings in an error to command-line options."""
    lines = []
    for line in error.lines:
        name, colon, rest = line.partition(":")
        option = f"--{name.replace('_', '-')}:{rest}"
        lines.append(option if colon and name in settings else line)
    return UserError(*lines)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns. The last column wraps at the terminal's width."""
    print("\n".join(columns(rows, wrapped=[len(rows[0]) - 1], width=terminal_width())) + "\n")


def terminal_width() -> int:
    """Return the width of the terminal in characters; 100 without a terminal."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns
