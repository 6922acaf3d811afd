"""The command `archwright explain`: explain a kind, axis, option or term."""

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
  archwright explain perplexity
  archwright explain mask.window       the kind of one axis, if several axes have one"""


def run(words: Sequence[str]) -> int:
    """Print the explanations of a word."""
    parser = Parser("explain", ABOUT, EXAMPLES)
    parser.add_argument(
        "word", metavar="WORD", help="a kind, option, axis or term, such as rope, gqa, perplexity"
    )
    options, _ = parser.parse_with_parts(words)
    for lines, numbers in list(_explanations(options.word, listing("choices"))):
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
    """Yield text and numbers for each kind, axis, option or term."""
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
        from archwright.inspection.explain import numbers_of_option

        lines = [key.removeprefix("model."), *wrapped(about)]
        lines += [f"archwright train modern {assignment}"]
        yield lines, numbers_of_option(key.rpartition(".")[2])
    if not options:
        yield _of_word(word, sections), []


def _of_axis(section: Section) -> list[str]:
    names = ", ".join(kind["name"] for kind in section["kinds"])
    about = (line for text in (*section["about"], names) for line in wrapped(text))
    return [section["name"], *about, f"archwright list choices {section['name']}"]


def _of_word(word: str, sections: Sequence[Section]) -> list[str]:
    """Return the glossary's entry for a word or, if there is none, the models with that name."""
    glossary = listing("glossary")
    for term, meaning in glossary.items():
        if plain(word) in map(plain, term.split(", ")):
            return [term, *wrapped(meaning)]
    if models := [
        name for name in preset_files("models") if f"{name}-".startswith(f"{word.lower()}-")
    ]:
        return [f"model: {', '.join(models)}", f"archwright show {models[0]}"]
    names = [n for s in sections for n in (s["name"], *(kind["name"] for kind in s["kinds"]))]
    raise UserError(
        f'explain "{word}": expected a kind, an option, an axis or a word of the glossary, such as rope, gqa, norm or '
        f"perplexity; archwright list choices has all choices.{nearest(word, [*names, *CHOICES, *glossary])}"
    )


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
