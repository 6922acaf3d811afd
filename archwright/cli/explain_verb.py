"""The command `archwright explain`: explain a kind, axis, option or term."""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from archwright.cli.choices_table import Section, named, names_of, plain, with_parts, wrapped
from archwright.cli.listings import listing
from archwright.cli.parser import Parser, print_table
from archwright.spec.errors import UserError, nearest
from archwright.spec.installed import preset_files
from archwright.spec.other_names import CHOICES

if TYPE_CHECKING:
    from archwright.inspection.explain import Numbers

ABOUT = """\
Explain a choice: its definition, formula, source and users, and a few numbers that show its effect, computed
on the spot. Axes, options and terms of the field are explained in a few lines."""

EXAMPLES = """\
  archwright explain rope
  archwright explain rmsnorm
  archwright explain swiglu
  archwright explain gqa
  archwright explain kv cache
  archwright explain mask.window       the kind of one axis, if several axes have one"""

GENERIC = (
    *("connection", "embedding", "encoding", "function", "layer", "mask", "norm", "position"),
    "schedule",
)
"""Last words of terms that may be left out: "parallel layers" is "parallel"."""


def run(words: Sequence[str]) -> int:
    """Print the explanations of a word."""
    parser = Parser("explain", ABOUT, EXAMPLES)
    parser.add_argument(
        "word", nargs="+", metavar="WORD", help="a kind, option, axis or term: rope, gqa, kv cache"
    )
    options, _ = parser.parse_with_parts(words)
    for lines, numbers in list(_explanations(" ".join(options.word), listing("choices"))):
        for line in lines:
            print(with_parts(line, options.parts) if "archwright " in line else line)
        for table in numbers:
            print()
            print("\n".join(wrapped(table.about)))
            print_table(table.rows)
        print()
    return 0


def _explanations(
    word: str, sections: Sequence[Section]
) -> Iterator[tuple[list[str], "list[Numbers]"]]:
    """Yield text and numbers: the glossary's entry of a word, then each kind, axis or option with that name.

    A word without an explanation is looked up without its plural and without a last word such as "layer".

    Raises:
        UserError: nothing has that name.
    """
    glossary = listing("glossary")
    for name in _spellings(word):
        choices = list(_choices(name, sections))
        terms = [t for t in glossary if plain(name) in map(plain, t.split(", "))]
        models = _models(name)
        if terms or choices or models:
            yield from (_of_term(term, glossary[term]) for term in terms)
            yield from choices
            if models:
                yield [f"model: {', '.join(models)}", f"archwright show {models[0]}"], []
            return
    names = [n for s in sections for n in (s["name"], *(kind["name"] for kind in s["kinds"]))]
    raise UserError(
        f'explain "{word}": expected a kind, an option, an axis or a word of the glossary, such as rope, gqa, norm or '
        f"perplexity; archwright list choices has all choices.{nearest(word, [*names, *CHOICES, *glossary])}"
    )


def _spellings(word: str) -> Iterator[str]:
    """Yield a word, its singular, and both without a last word that says only what kind of thing it is."""
    yield word
    if word.endswith("s"):
        yield word[:-1]
    first, _, last = re.sub("[-_ ]+", " ", word.strip()).rpartition(" ")
    if first and last.lower().removesuffix("s") in GENERIC:
        yield from _spellings(first)


def _models(word: str) -> list[str]:
    """Return the presets with a name, or with a name that it begins."""
    start = re.sub("[_ ]+", "-", word.strip().lower())
    return [name for name in preset_files("models") if start and f"{name}-".startswith(f"{start}-")]


def _of_term(term: str, meaning: str) -> tuple[list[str], "list[Numbers]"]:
    return [term, *wrapped(meaning)], _numbers(term.partition(", ")[0])


def _numbers(name: str) -> "list[Numbers]":
    """Return the example table of an option or a term, if it has one."""
    from archwright.inspection.terms import TERMS

    return [TERMS[name]()] if name in TERMS else []


def _choices(word: str, sections: Sequence[Section]) -> Iterator[tuple[list[str], "list[Numbers]"]]:
    """Yield text and numbers for each kind, axis or option."""
    path, axes, kinds = named(word, sections)
    axis, _, name = path.rpartition(".")
    if kinds:
        yield from (_of_kind(section, kind) for section, kind in kinds)
        return
    if axes and not axis:
        yield from ((_of_axis(section), []) for section in axes)
        return
    here = [s for s in sections if not axis or axis in map(plain, names_of(s))]
    options: dict[str, tuple[str, str]] = {}
    groups = (group for s in here for group in (s, *s["families"], *s["kinds"]))
    for assignment, about in (pair for group in groups for pair in group["options"]):
        key = assignment.split()[-1].partition("=")[0].removesuffix(".kind")
        if plain(key).rpartition(".")[2] == name:
            options.setdefault(key, (assignment, about))  # the first kind names the users
    for key, (assignment, about) in options.items():
        name = key.removeprefix("model.")
        lines = [name, *wrapped(about), f"archwright train modern {assignment}"]
        yield lines, _numbers(name)


def _of_axis(section: Section) -> list[str]:
    names = ", ".join(kind["name"] for kind in section["kinds"])
    about = (line for text in (*section["about"], names) for line in wrapped(text))
    return [section["name"], *about, f"archwright list choices {section['name']}"]


def _of_kind(section: Section, kind: dict[str, Any]) -> tuple[list[str], "list[Numbers]"]:
    from archwright.inspection.explain import formula, numbers_of_kind
    from archwright.plugins import REGISTRIES

    axes = {registry.base.axis: registry.base.choices() for registry in REGISTRIES.values()}
    choice: Any = axes.get(section["name"], {}).get(kind["name"])
    lines = [f"{section['name']}: {kind['name']}", *wrapped(kind["about"])]
    if choice and (text := formula(choice)):
        lines += ["", *wrapped(text)]
    lines += ["", *(line for text in kind["users"] for line in wrapped(text))]
    words = shlex.split(kind["command"])[3:]  # archwright train modern KEY=VALUE ...
    numbers = []
    if choice and not kind["refusal"]:
        numbers = numbers_of_kind(choice, [word.removeprefix("model.") for word in words])
    lines += [kind["command"]]
    if kind["options"]:
        number = len(kind["options"])
        lines += [f"{number} option{'s' * (number > 1)}: archwright list choices {kind['name']}"]
    return lines, numbers
