"""archwright complete: what the scripts of `archwright completion` ask; a verb that no help names."""

import argparse
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from archwright import presets
from archwright.cli.explain_verb import known_words
from archwright.cli.key_completion import FILES, keys_and_values
from archwright.cli.list_verb import WHAT
from archwright.cli.listings import listing
from archwright.cli.main import VERBS
from archwright.cli.new_verb import KINDS
from archwright.cli.parser import DESCRIBE, Described, Parser
from archwright.spec.errors import UserError

PRESETS = {
    "train": ("runs", "models"),
    "prepare": ("runs", "models"),
    "compare": ("studies", "models"),
    "plan": ("models",),
    "show": ("models",),
    "diff": ("models",),
}
"""Rooms of presets that a verb takes by name."""
OF_RUNS = ("generate", "eval", "export", "report")
"""Verbs that take the folder of a run."""
MOST_MODELS = {"train": 1, "prepare": 1, "show": 1, "diff": 2}
"""Models that a verb takes before only values may follow."""


def run(words: Sequence[str]) -> int:
    """Print what the last word can become, one in a line; nothing where only files are expected."""
    try:
        found = candidates([*words] or [""])
    except (UserError, OSError):  # the words before are wrong, which is said when they are run
        found = []
    for text in found:
        print(text)
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """Return what the last of the words behind `archwright` can become."""
    *before, current = words
    if not before:
        known: Iterator[str] = iter([*VERBS, "--help", "--version"])
    elif before[0] not in VERBS:
        known = iter(())
    else:
        known = _of_verb(before[0], before[1:], current)
    return [text for text in dict.fromkeys(known) if text.startswith(current)]


def _of_verb(verb: str, before: Sequence[str], current: str) -> Iterator[str]:
    parser = described(verb)
    option = parser._option_string_actions.get(before[-1]) if before else None
    if option is not None and option.nargs != 0:
        yield from _values_of_option(option)
    elif current.startswith("-"):
        yield from (
            name
            for action in parser._actions
            if action.help != argparse.SUPPRESS
            for name in action.option_strings
        )
    else:
        yield from _words(verb, parser, before, current)


def described(verb: str) -> Parser:
    """Return the parser of a verb, which the verb makes when it is run."""
    try:
        import_module(f"archwright.cli.{verb}_verb").run([DESCRIBE])
    except Described as found:
        return found.parser
    raise AssertionError(f"{verb} reads its words otherwise")


def _values_of_option(option: argparse.Action) -> Iterator[str]:
    if option.choices is not None:
        yield from map(str, option.choices)
    elif "|" in (metavar := str(option.metavar)):
        yield from metavar.split("|")
    elif "--hardware" in option.option_strings:
        yield from (presets.THIS, *_presets("hardware"))
    elif "--resume" in option.option_strings:
        yield from _runs()


def _words(verb: str, parser: Parser, before: Sequence[str], current: str) -> Iterator[str]:
    """Yield what stands without dashes: names, keys, values."""
    if verb == "list":
        yield from _of_list(before, current)
        return
    if verb == "explain":
        yield from _of_explain(before, current)
        return
    for action in parser._actions:
        if not action.option_strings and action.choices is not None:
            yield from map(str, action.choices)
    if verb in OF_RUNS or verb == "plan":
        yield from _runs()
    if verb == "schema":
        yield from FILES
    if verb == "new" and not before:
        yield from KINDS
    named = [word for word in before if "=" not in word and not word.startswith("-")]
    if verb in PRESETS and len(named) < MOST_MODELS.get(verb, len(before) + 1):
        for room in PRESETS[verb]:
            yield from _presets(room)
        yield from sorted(path.name for path in Path().glob("*.toml"))
    if verb in PRESETS and (
        named or verb in ("compare", "plan") or "=" in current or "." in current
    ):
        at, colon, key = (
            current.rpartition(":") if verb in ("compare", "plan") else ("", "", current)
        )
        if "=" not in at:
            file = "model" if verb in ("show", "diff") else "run"
            yield from (at + colon + text for text in keys_and_values(file, key))


def _of_list(before: Sequence[str], current: str) -> Iterator[str]:
    if before[:1] == ["choices"]:
        for section in listing("choices"):
            yield section["name"]
            yield from (kind["name"] for kind in section["kinds"])
        return
    if not before:
        yield from WHAT
    if not before or before[0] not in WHAT or before[0] == "models":
        chosen = listing("chosen")
        key, equals, _ = current.partition("=")
        if equals:
            values = {**chosen.get(key, {}), **chosen.get(f"{key}.kind", {})}
            yield from (f"{key}={value}" for value in values)
        else:
            names = [name for name in listing("models")["rows"][0] if name != "unpublished"]
            yield from (f"{name}=" for name in [*names, "mixer", *chosen])


def _of_explain(before: Sequence[str], current: str) -> Iterator[str]:
    """Yield what can be explained, kinds behind their axis only where that has been typed."""
    if any(not word.startswith("-") for word in before):
        return
    for word in known_words(listing("choices")):
        if " " not in word and ("." in current or "." not in word):  # shells take blanks for ends
            yield word


def _presets(room: str) -> list[str]:
    return sorted(path.stem for path in (presets.FOLDER / room).glob("*.toml"))


def _runs() -> list[str]:
    return sorted(str(path.parent) for path in Path("runs").glob("*/spec.toml"))
