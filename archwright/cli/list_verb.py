"""The command `archwright list`: print tables of models, recipes, studies, choices, families or runs."""

import argparse
from collections.abc import Sequence

from archwright.cli.architectures_table import FORMATS, print_architectures, with_costs
from archwright.cli.choices_table import print_choices, print_choices_of
from archwright.cli.listings import index, listing, published_costs
from archwright.cli.model_filter import FILTER, by_year, filtered, named_like
from archwright.cli.parser import Parser, print_table
from archwright.spec.absent import refuse_absent
from archwright.spec.errors import UserError, nearest

ABOUT = """\
List published models, recipes, your runs, or all choices of every axis.

KEY=VALUE selects models by a value: KEY is a column of the table (--wide prints all columns), a path as
printed by show --values, or mixer. The operators are = and !=, and for numbers <, <=, > and >=. Any other
word selects models by their names."""

EXAMPLES = """\
  archwright list                the models, recipes and studies
  archwright list norm=layer "year>=2024"
  archwright list mixer=latent "parameters<20B"
  archwright list attention.qk_norm.kind=rms --by-year
  archwright list qwen           the models with a word in their names
  archwright list models --wide  every column of the table of architectures
  archwright list llama --columns layers,dim,dim_over_layers
  archwright list models --format csv > architectures.csv
  archwright list choices        every axis with its kinds
  archwright list choices mask   an axis with options, users, and a command for each kind
  archwright list families       the model types that import reads and export writes
  archwright list runs           the runs in runs/, newest first"""

WHAT = ("models", "recipes", "studies", "choices", "families", "runs")

HEADS = {
    "recipes": ["recipe", "model", "text", "budget", "optimizer"],
    "studies": ["study", "baseline", "variants", "budget", "question"],
    "families": ["model_type", "class of transformers"],
}


def run(words: Sequence[str]) -> int:
    """Print tables of models, recipes, studies, choices, families or runs."""
    parser = Parser("list", ABOUT, EXAMPLES)
    parser.add_argument("words", nargs="*", metavar="WHAT", help=", ".join(WHAT))
    parser.add_argument(
        "--format", choices=FORMATS, default="text", help="of models: text, csv, markdown or json"
    )
    parser.add_argument(
        "--wide", dest="all_columns", action="store_true", help="of models: every column"
    )
    parser.add_argument("--columns", metavar="A,B", help="of models: these columns")
    parser.add_argument("--by-year", action="store_true", help="of models: the number per year")
    options, _ = parser.parse_with_parts(words)
    rest = [*options.words]
    what = rest.pop(0) if rest[:1] and rest[0] in WHAT else None
    name = rest.pop(0) if what == "choices" and rest else None
    if what == "choices":
        from archwright.spec.installed import load_installed

        load_installed()
    filters = [word for word in rest if FILTER.fullmatch(word)]
    names = [word for word in rest if word not in filters]
    if filters and what not in (None, "models"):
        raise UserError(f"list {what}: {filters[0]} is for models; leave it out, or list models")
    if names:
        _check_names(what, names)
    wide = options.all_columns or options.columns is not None or options.format != "text"
    if (wide or options.by_year) and what not in (None, "models"):
        raise UserError(
            f"list {what}: --wide, --columns, --by-year and --format are for models; leave them out, or list models"
        )
    if name:
        print_choices_of(name, listing("choices"), tuple(options.parts))
    elif filters or names or wide or options.by_year:
        _print_models(filters, names, options)
    else:
        for table in [what] if what else ["models", "recipes", "studies"]:
            _print(table)
        if not what:
            print("archwright show NAME prints details; archwright list choices lists all choices.")
    return 0


def _check_names(what: str | None, names: Sequence[str]) -> None:
    """Raise a UserError for words other than lists, filters and models."""
    if what not in (None, "models"):
        raise UserError(
            f"list {what}: {names[0]}: more words than it takes; archwright list {what} shows all of them"
        )
    rows = listing("models")["rows"]
    for name in names:
        if not named_like(rows, name):
            refuse_absent(name)
            columns = [column for column in rows[0] if column != "model"]
            if name in columns:  # `list year>=2024` without quotes: the shell redirected to a file
                raise UserError(
                    f'list "{name}": expected {name}=VALUE; quote what holds < or >: "{name}>=VALUE"'
                )
            raise UserError(
                f'list "{name}": expected one of {", ".join(WHAT)}, a value such as norm=layer, or a word of '
                f"a model's name.{nearest(name, [*WHAT, *(row['model'] for row in rows)])}"
            )


def _print_models(
    filters: Sequence[str], names: Sequence[str], options: argparse.Namespace
) -> None:
    """Print the models matching all filters and names."""
    models = listing("models")
    with_all = with_costs(models, published_costs())
    rows, conditions = filtered(with_all["rows"], index(), filters)
    for name in names:
        rows = named_like(rows, name)
    if options.by_year:
        print_table(by_year(rows, models["rows"]))
    elif rows or options.format != "text":
        columns = [*with_all["rows"][0]]
        if options.columns is not None:
            columns = _chosen(options.columns, columns)
            rows = [{name: row[name] for name in columns} for row in rows]
        all_columns = options.all_columns or options.columns is not None
        shown = {**models, "rows": rows}
        print_architectures(shown, options.format, all_columns=all_columns, names=columns)
    if (filters or names) and options.format == "text":
        selection = ", ".join(filter(None, [conditions, *(f"named {name}" for name in names)]))
        print(f"{len(rows)} of {len(models['rows'])} models: {selection}")


def _chosen(words: str, columns: Sequence[str]) -> list[str]:
    """Return the columns named in a list with commas, between the name of a model and its unpublished details."""
    model, *inner, unpublished = columns
    names = [word.strip().replace(" ", "_") for word in words.split(",")]
    for name in names:
        if name not in inner:
            hint = nearest(name, inner)
            raise UserError(f'--columns: got "{name}", expected one of {", ".join(inner)}.{hint}')
    return [model, *dict.fromkeys(names), unpublished]


def _print(what: str) -> None:
    if what == "runs":
        from archwright.cli.runs_table import print_runs

        print_runs()
        return
    content = listing(what)
    if what == "models":
        print_architectures(content, "text", names=[*content["rows"][0]])
    elif what == "choices":
        print_choices(content)
    else:
        print_table([HEADS[what], *content])
    if what == "families":
        print(
            f"{len(content)} families; archwright import FOLDER reads a checkpoint of any of them."
        )
