"""How verbs read their words: options anywhere, dotted assignments between them."""

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
from archwright.spec.other_names import OPTIONS

if TYPE_CHECKING:
    from archwright.runs import RunFolder

OPTION = re.compile(r"-(?!\d|\.\d)\S+$")
"""A word that is no value of the option before it, unlike "- item", -1T and -.5."""


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
        elif found := re.fullmatch(r"argument ([^:]+): (.*)", message, re.DOTALL):
            message = self._wrong_value(found[1].rpartition("/")[2], found[2])
        # Assignments are many or none, but argparse counts them among what is required.
        message = message.removesuffix(", KEY=VALUE")
        raise UserError(f"{message}{'' if message[-1] in '?.' else '.'} See {self.prog} --help")

    def _unknown(self, words: str) -> str:
        if not words.startswith("-"):
            prompt = f". Did you mean --prompt {shlex.quote(words)}?"
            hint = prompt if "--prompt" in self._option_string_actions else ""
            return f"{words}: more words than {self.prog} takes{hint}"
        message = f"{words}: no such option"
        option, _, value = words.replace("=", " ", 1).partition(" ")
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
        # What another command takes as a value may be an option here: --format json is --json.
        named = f"--{value}" if f"--{value}" in self._option_string_actions else option
        named = OPTIONS.get(named.lstrip("-"), named)
        hint = nearest(named, self._option_string_actions)
        return f"{message}.{hint}" if hint else message

    def _wrong_value(self, name: str, complaint: str) -> str:
        """Return argparse's complaint about the value of an option or a word as ours are."""
        if complaint == "expected one argument":
            return f"{name}: expected a value behind it"
        if complaint.startswith("ignored explicit argument"):
            return f"{name}: takes no value"
        number = re.fullmatch(r"invalid (int|float) value: '(.*)'", complaint)
        if number is not None:
            expected = "a whole number" if number[1] == "int" else "a number"
            return f'{name}: found "{number[2]}"; expected {expected}'
        actions = [a for a in self._actions if name in (*a.option_strings, a.metavar, a.dest)]
        choice = re.match(r"invalid choice: '(.*?)' \(", complaint)
        if choice is not None and actions and actions[0].choices is not None:
            known = [*map(str, actions[0].choices)]
            expected = f"one of {', '.join(known)}" if known[1:] else known[0]
            name = "" if name in known else f"{name}: "
            return f'{name}found "{choice[1]}"; expected {expected}.{nearest(choice[1], known)}'
        return f"{name}: {complaint}"

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the options; they may stand before, between and after the other words."""
        if "_ARGCOMPLETE" in os.environ:
            from archwright.cli.completion import complete_words

            complete_words(self, self.prog.rpartition(" ")[2])
        return self.parse_args(words)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        return super().parse_known_args(self._options_first(args), namespace)

    def _options_first(self, words: Sequence[str]) -> list[str]:
        """Return the words in the order that argparse needs: options with one value, joined to it, as -1T is no
        option; other words; options that take all words after them, or lack their value."""
        first: list[str] = []
        others: list[str] = []
        last: list[str] = []
        option: argparse.Action | None = None
        for i, word in enumerate(words):
            if word == "--":
                return [*first, *others, *last, *words[i:]]
            known = self._option_string_actions.get(word.partition("=")[0])
            if known is not None:
                option = known if known.nargs != 0 and "=" not in word else None
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
        """Run files of choices from outside, too; return the hash of each by its name, which a run records.

        Raises:
            UserError: a file that is missing or fails, one line each.
        """
        add_parts_option(self)
        options = self.parse(words)
        found: dict[str, str] = {}
        lines: list[str] = []
        for file in options.parts:
            from archwright.plugins import load_parts_file

            try:
                found[Path(file).name] = load_parts_file(Path(file))
            except UserError as error:
                lines += error.lines
        if lines:
            raise UserError(*lines)
        return options, found


def add_parts_option(parser: Parser) -> None:
    """Let a verb take choices from outside the package."""
    parser.add_argument(
        "--parts",
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file whose choices join the package's, as archwright new writes one; it is run, so trust it",
    )


def check_parts(folder: "RunFolder", given: Mapping[str, str], *, same: bool = False) -> None:
    """Hold a run to the files of choices that it was made with: they must be given, and for training be the `same`.

    Raises:
        UserError: one that is not given, or changed, one line each.
    """
    lines = []
    for name, digest in folder.parts.items():
        if name not in given:
            lines.append(f"{folder.path} was made with choices of {name}; add --parts {name}")
        elif given[name] != digest and same:
            lines.append(
                f"--parts {name}: not the file that {folder.path} was made with (SHA-256 "
                f"{given[name][:12]}, not {digest[:12]}); give that one, or train with another --out"
            )
        elif given[name] != digest:
            warnings.warn(f"{name} has changed since {folder.path} was made with it", stacklevel=2)
    if lines:
        raise UserError(*lines)


def as_options(error: UserError, settings: Collection[str]) -> UserError:
    """Return an error whose lines name settings as they are written on the command line."""
    lines = []
    for line in error.lines:
        name, colon, rest = line.partition(":")
        option = f"--{name.replace('_', '-')}:{rest}"
        lines.append(option if colon and name in settings else line)
    return UserError(*lines)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns; the last column takes what is left of the line."""
    print("\n".join(columns(rows, wrapped=[len(rows[0]) - 1], width=terminal_width())) + "\n")


def terminal_width() -> int:
    """Return the columns of the terminal; 100 where there is none."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns
