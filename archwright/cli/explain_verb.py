"""archwright explain"""

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from archwright import presets
from archwright.cli.choices_table import Section, named, names_of, plain, with_parts, wrapped
from archwright.cli.listings import listing
from archwright.cli.parser import Parser, print_table
from archwright.spec.errors import UserError, nearest
from archwright.spec.other_names import CHOICES

if TYPE_CHECKING:
    from archwright.inspection.explain import Numbers

ABOUT = """\
Explain a choice: what it is, the formula, the source, who uses it, and a few numbers that show what it does,
computed on the spot. Axes, options and words of the field are explained in a few lines."""

EXAMPLES = """\
  archwright explain rope
  archwright explain rmsnorm
  archwright explain swiglu
  archwright explain gqa
  archwright explain perplexity
  archwright explain mask.window       a kind of one axis, where several have one of that name"""


def run(words: Sequence[str]) -> int:
    """Print what a word means, once for each axis that has it."""
    parser = Parser("explain", ABOUT, EXAMPLES)
    parser.add_argument(
        "word", metavar="WORD", help="a kind, option, axis or word, as rope, gqa, perplexity"
    )
    options, _ = parser.parse_with_parts(words)
    found = list(_found(options.word, listing("choices")))
    for lines, numbers in found:
        for line in lines:
            print(with_parts(line, options.parts) if "archwright " in line else line)
        for table in numbers:
            print()
            print("\n".join(wrapped(table.about)))
            print_table(table.rows)
        print()
    return 0


def _found(word: str, known: Sequence[Section]) -> Iterator[tuple[list[str], "list[Numbers]"]]:
    """Yield the text and the numbers of each kind of that name; else of the axis, of each option, or of the word."""
    path, axes, kinds = named(word, known)
    axis, _, name = path.rpartition(".")
    if kinds:
        yield from (_of_kind(section, kind) for section, kind in kinds)
        return
    if axes and not axis:
        yield from ((_of_axis(section), []) for section in axes)
        return
    here = [s for s in known if not axis or axis in map(plain, names_of(s))]
    options: dict[str, tuple[str, str]] = {}
    groups = (group for s in here for group in (s, *s["families"], *s["kinds"]))
    for asks, about in (pair for group in groups for pair in group["options"]):
        key = asks.split()[-1].partition("=")[0].removesuffix(".kind")
        if plain(key).rpartition(".")[2] == name:
            options.setdefault(key, (asks, about))  # of several kinds the first has the users
    for key, (asks, about) in options.items():
        from archwright.inspection.explain import numbers_of_option

        lines = [key.removeprefix("model."), *wrapped(about), f"archwright train modern {asks}"]
        yield lines, numbers_of_option(key.rpartition(".")[2])
    if not options:
        yield _of_word(word, known), []


def _of_axis(section: Section) -> list[str]:
    names = ", ".join(kind["name"] for kind in section["kinds"])
    about = (line for text in (*section["about"], names) for line in wrapped(text))
    return [section["name"], *about, f"archwright list choices {section['name']}"]


def _of_word(word: str, known: Sequence[Section]) -> list[str]:
    """Return a line of the glossary, or where models of that name are shown."""
    words = listing("glossary")
    for term, meaning in words.items():
        if plain(word) in map(plain, term.split(", ")):
            return [term, *wrapped(meaning)]
    files = sorted(path.stem for path in (presets.FOLDER / "models").glob("*.toml"))
    if models := [name for name in files if f"{name}-".startswith(f"{word.lower()}-")]:
        return [f"model: {', '.join(models)}", f"archwright show {models[0]}"]
    names = [name for s in known for name in (s["name"], *(kind["name"] for kind in s["kinds"]))]
    raise UserError(
        f'explain "{word}": expected a kind, an option, an axis or a word of the glossary, such as rope, gqa, norm or '
        f"perplexity; archwright list choices has all choices.{nearest(word, [*names, *CHOICES, *words])}"
    )


def _of_kind(section: Section, kind: dict[str, Any]) -> tuple[list[str], "list[Numbers]"]:
    from archwright.inspection.explain import formula, numbers_of_kind
    from archwright.plugins import REGISTRIES

    axes = {registry.base.axis: registry.base.kinds for registry in REGISTRIES}
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
