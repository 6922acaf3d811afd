"""archwright list"""

import os
from collections.abc import Sequence

from archwright.cli.architectures_table import FORMATS, print_architectures, with_costs
from archwright.cli.choices_table import print_choices, print_choices_of
from archwright.cli.listings import listing, published_costs
from archwright.cli.parser import Parser, print_table
from archwright.machine.loading import loading
from archwright.spec.errors import UserError, nearest

ABOUT = "List published models, recipes, your runs, or all choices of every axis."

EXAMPLES = """\
  archwright list                the models, recipes and studies
  archwright list models --wide  every column of the table of architectures
  archwright list models --format csv > architectures.csv
  archwright list choices        every axis and what it can be set to
  archwright list choices mask   an axis with options, users, and how to ask for each kind
  archwright list families       the checkpoints that import reads and export writes
  archwright list runs           the runs in runs/"""

WHAT = ("models", "recipes", "studies", "choices", "families", "runs")

HEADS = {
    "recipes": ["recipe", "model", "text", "budget", "optimizer"],
    "studies": ["study", "baseline", "variants", "budget", "question"],
    "families": ["model_type", "class of transformers"],
}


def run(words: Sequence[str]) -> int:
    """Print a table."""
    parser = Parser("list", ABOUT, EXAMPLES)
    parser.add_argument("what", nargs="?", metavar="WHAT", help=", ".join(WHAT))
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="of choices: an axis, a table or a kind"
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="text", help="of models: text, csv, markdown or json"
    )
    parser.add_argument(
        "--wide", dest="all_columns", action="store_true", help="of models: every column"
    )
    options, parts = parser.parse_with_parts(words)
    joined = bool(parts)
    what, name = options.what, options.name
    whole = options.all_columns or options.format != "text"
    if what and what not in WHAT:
        raise UserError(f'list "{what}": expected one of {", ".join(WHAT)}.{nearest(what, WHAT)}')
    if name and what != "choices":
        raise UserError(
            f'list {what} "{name}": only choices can be named; see archwright list --help'
        )
    if name:
        print_choices_of(name, listing("choices", resolve=joined))
    elif whole and what not in (None, "models"):
        raise UserError(
            f"list {what}: --wide and --format are for models; leave them out, or list models"
        )
    elif whole:
        models = with_costs(listing("models", resolve=joined), published_costs())
        print_architectures(models, options.format, all_columns=True)
    else:
        for each in [what] if what else ["models", "recipes", "studies"]:
            _print(each, joined)
    if not (what or whole):
        print("archwright show NAME says more; archwright list choices lists what can be changed.")
    return 0


def _print(what: str, joined: bool) -> None:
    """Print a whole list, made now if choices have `joined`."""
    if what == "runs":
        _print_runs()
        return
    found = listing(what, resolve=joined)
    if what == "models":
        print_architectures(found, "text")
    elif what == "choices":
        print_choices(found)
    else:
        print_table([HEADS[what], *found])
    if what == "families":
        print(f"{len(found)} families; archwright import FOLDER reads a checkpoint of any of them.")


def _print_runs() -> None:
    with loading():
        from archwright.runs import RUNS, find

    rows = [["run", "state", "bits per byte"]]
    for folder in find():
        evals = [r.get("bits_per_byte") for r in folder.metrics() if r["kind"] == "eval"]
        reached = f"{evals[-1]:.3f}" if evals and evals[-1] is not None else "-"
        rows.append([str(folder.path), "finished" if folder.finished else "open", reached])
    if rows[1:]:
        print_table(rows)
    else:
        print(f"no runs in {RUNS}{os.sep} yet; archwright train demo makes one")
