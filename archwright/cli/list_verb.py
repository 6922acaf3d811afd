"""archwright list"""

import argparse
from collections.abc import Sequence

from archwright.cli.architectures_table import FORMATS, print_architectures, with_costs
from archwright.cli.choices_table import print_choices, print_choices_of
from archwright.cli.listings import listing, published_costs
from archwright.cli.model_filter import FILTER, by_year, filtered, named_like
from archwright.cli.parser import Parser, print_table
from archwright.spec.absent import refuse_absent
from archwright.spec.errors import UserError, nearest

ABOUT = """\
List published models, recipes, your runs, or all choices of every axis.

KEY=VALUE keeps the models that have a value: KEY is a column of the table (--wide has all of them), a path
as show --values prints it, or mixer; =, !=, and of numbers <, <=, > and >= compare. A word that is none of
these keeps the models whose names hold it."""

EXAMPLES = """\
  archwright list                the models, recipes and studies
  archwright list norm=layer "year>=2024"
  archwright list mixer=latent "parameters<20B"
  archwright list attention.qk_norm.kind=rms --by-year
  archwright list qwen           the models whose names hold a word
  archwright list models --wide  every column of the table of architectures
  archwright list models --format csv > architectures.csv
  archwright list choices        every axis and what it can be set to
  archwright list choices mask   an axis with options, users, and how to ask for each kind
  archwright list families       the checkpoints that import reads and export writes
  archwright list runs           the runs in runs/, the newest first"""

WHAT = ("models", "recipes", "studies", "choices", "families", "runs")

HEADS = {
    "recipes": ["recipe", "model", "text", "budget", "optimizer"],
    "studies": ["study", "baseline", "variants", "budget", "question"],
    "families": ["model_type", "class of transformers"],
}


def run(words: Sequence[str]) -> int:
    """Print a table."""
    parser = Parser("list", ABOUT, EXAMPLES)
    parser.add_argument("words", nargs="*", metavar="WHAT", help=", ".join(WHAT))
    parser.add_argument(
        "--format", choices=FORMATS, default="text", help="of models: text, csv, markdown or json"
    )
    parser.add_argument(
        "--wide", dest="all_columns", action="store_true", help="of models: every column"
    )
    parser.add_argument("--by-year", action="store_true", help="of models: how many of each year")
    options, _ = parser.parse_with_parts(words)
    rest = [*options.words]
    what = rest.pop(0) if rest[:1] and rest[0] in WHAT else None
    name = rest.pop(0) if what == "choices" and rest else None
    filters = [word for word in rest if FILTER.fullmatch(word)]
    others = [word for word in rest if word not in filters]
    if filters and what not in (None, "models"):
        raise UserError(f"list {what}: {filters[0]} is for models; leave it out, or list models")
    if others:
        _check_names(what, others)
    whole = options.all_columns or options.format != "text"
    if (whole or options.by_year) and what not in (None, "models"):
        raise UserError(
            f"list {what}: --wide, --by-year and --format are for models; leave them out, or list models"
        )
    if name:
        print_choices_of(name, listing("choices"), tuple(options.parts))
    elif filters or others or whole or options.by_year:
        _print_models(filters, others, options)
    else:
        for each in [what] if what else ["models", "recipes", "studies"]:
            _print(each)
        if not what:
            print(
                "archwright show NAME says more; archwright list choices lists what can be changed."
            )
    return 0


def _check_names(what: str | None, names: Sequence[str]) -> None:
    """Refuse words that are neither a list, nor a condition, nor in the name of a model."""
    if what not in (None, "models"):
        raise UserError(
            f"list {what}: {names[0]}: more words than it takes; archwright list {what} shows all of them"
        )
    rows = listing("models")["rows"]
    known = [row["model"] for row in rows]
    for name in names:
        if not named_like(rows, name):
            refuse_absent(name)
            columns = [column for column in rows[0] if column != "model"]
            if (
                name in columns
            ):  # `list year>=2024` without quotes: the shell has made a file of the rest
                raise UserError(
                    f'list "{name}": expected {name}=VALUE; quote what holds < or >: "{name}>=VALUE"'
                )
            raise UserError(
                f'list "{name}": expected one of {", ".join(WHAT)}, a value such as norm=layer, or a word of '
                f"a model's name.{nearest(name, [*WHAT, *known])}"
            )


def _print_models(
    filters: Sequence[str], names: Sequence[str], options: argparse.Namespace
) -> None:
    """Print the models that meet all conditions."""
    models = listing("models")
    with_all = with_costs(models, published_costs())
    found, conditions = filtered(with_all["rows"], listing("chosen"), filters)
    for name in names:
        found = named_like(found, name)
    if options.by_year:
        print_table(by_year(found, models["rows"]))
    elif found or options.format != "text":
        names_of_columns = [*with_all["rows"][0]]
        shown = {**models, "rows": found}
        print_architectures(
            shown, options.format, all_columns=options.all_columns, names=names_of_columns
        )
    if (filters or names) and options.format == "text":
        asked = ", ".join(filter(None, [conditions, *(f"named {name}" for name in names)]))
        print(f"{len(found)} of {len(models['rows'])} models: {asked}")


def _print(what: str) -> None:
    if what == "runs":
        from archwright.cli.runs_table import print_runs

        print_runs()
        return
    found = listing(what)
    if what == "models":
        print_architectures(found, "text", names=[*found["rows"][0]])
    elif what == "choices":
        print_choices(found)
    else:
        print_table([HEADS[what], *found])
    if what == "families":
        print(f"{len(found)} families; archwright import FOLDER reads a checkpoint of any of them.")
