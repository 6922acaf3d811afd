"""archwright explain"""

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from archwright.cli.choices_table import Section, names_of, wrapped
from archwright.cli.listings import listing
from archwright.cli.parser import Parser, print_table
from archwright.spec.errors import UserError, nearest
from archwright.spec.other_names import CHOICES

if TYPE_CHECKING:
    from archwright.inspection.explain import Numbers

ABOUT = """\
Explain a choice: what it is, the formula, the source, who uses it, and a few numbers that show what it does,
computed on the spot."""

EXAMPLES = """\
  archwright explain rope
  archwright explain rmsnorm
  archwright explain swiglu
  archwright explain gqa
  archwright explain mask.window       a kind of one axis, where several have one of that name"""


def run(words: Sequence[str]) -> int:
    """Print what a word means, once for each axis that has it."""
    parser = Parser("explain", ABOUT, EXAMPLES)
    parser.add_argument("word", metavar="WORD", help="a kind or an option, as rope, layer, gqa")
    options, _ = parser.parse_with_parts(words)
    found = list(_found(options.word, listing("choices")))
    for lines, numbers in found:
        print("\n".join(lines))
        for table in numbers:
            print()
            print("\n".join(wrapped(table.about)))
            print_table(table.rows)
        print()
    return 0


def _found(word: str, known: Sequence[Section]) -> Iterator[tuple[list[str], "list[Numbers]"]]:
    """Yield the text and the numbers of each kind of that name, or of each option where no kind has it.

    Raises:
        UserError: nothing has it.
    """
    wanted = word.strip().lower().replace("=", ".").replace(".kind.", ".")
    axis, _, name = CHOICES.get(wanted, wanted).removeprefix("model.").rpartition(".")
    here = [s for s in known if not axis or axis in names_of(s)]
    kinds = [(s, kind) for s in here for kind in s["kinds"] if kind["name"] == name]
    options: dict[str, str] = {}
    groups = (group for s in here for group in (s, *s["families"], *s["kinds"]))
    for asks, about in (pair for group in groups for pair in group["options"]):
        path = asks.split()[-1].partition("=")[0]
        if path.rpartition(".")[2] == name:  # several kinds may have it; the first has the users
            options.setdefault(path, about)
    axes = [s["name"] for s in known if wanted.removeprefix("model.") in names_of(s)]
    if axes and not kinds:
        raise UserError(
            f'explain "{word}": expected a kind or an option; archwright list choices {axes[0]} '
            f"shows those of {axes[0]}"
        )
    if not kinds and not options:
        names = [kind["name"] for s in known for kind in s["kinds"]]
        raise UserError(
            f'explain "{word}": expected a kind or an option, such as rope, rms, swiglu or gqa; '
            f"archwright list choices has all of them.{nearest(word, [*names, *CHOICES])}"
        )
    for section, kind in kinds:
        yield _of_kind(section, kind)
    if not kinds:
        from archwright.inspection.explain import numbers_of_option

        for path, about in options.items():
            yield [path.removeprefix("model."), *wrapped(about)], numbers_of_option(name)


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
