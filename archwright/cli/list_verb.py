"""archwright list"""

import os
from collections.abc import Sequence

from archwright.cli.architectures_table import FORMATS, print_architectures
from archwright.cli.parser import Parser, add_parts_option, load_parts, print_table
from archwright.spec.errors import UserError, nearest
from archwright.spec.read import load_run, load_study, preset_names, study_names

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
    parser.add_argument("--wide", action="store_true", help="of models: every column")
    add_parts_option(parser)
    options = parser.parse(words)
    load_parts(options.parts)
    tables = {
        "models": _models,
        "recipes": _recipes,
        "studies": _studies,
        "choices": _choices,
        "families": _families,
        "runs": _runs,
    }
    if options.what and options.what not in tables:
        hint = nearest(options.what, tables)
        raise UserError(f'list "{options.what}": expected one of {", ".join(tables)}.{hint}')
    if options.name:
        return _one(options.what, options.name)
    if options.wide or options.format != "text":
        return _only_models(options.what, options.format)
    for what in [options.what] if options.what else ["models", "recipes", "studies"]:
        tables[what]()
    if not options.what:
        print("archwright show NAME says more; archwright list choices lists what can be changed.")
    return 0


def _only_models(what: str | None, format: str) -> int:
    """Print the whole table of architectures."""
    if what not in (None, "models"):
        raise UserError(
            f"list {what}: --wide and --format are for models; leave them out, or list models"
        )
    print_architectures(format, wide=True)
    return 0


def _one(what: str, name: str) -> int:
    """Print what is known of some choices."""
    from archwright.cli.choices_table import print_choices_of

    if what != "choices":
        raise UserError(
            f'list {what} "{name}": only choices can be named; see archwright list --help'
        )
    print_choices_of(name)
    return 0


def _choices() -> None:
    from archwright.cli.choices_table import print_choices

    print_choices()


def _models() -> None:
    print_architectures("text")


def _recipes() -> None:
    rows = [["recipe", "model", "text", "budget", "optimizer"]]
    for name in preset_names("runs"):
        spec = load_run(name)
        text = ", ".join(spec.data.text)
        rows.append([name, spec.model.name, text, spec.budget, spec.optimizer.kind])
    print_table(rows)


def _studies() -> None:
    rows = [["study", "baseline", "variants", "budget", "question"]]
    for name in study_names():
        study = load_study(name)
        count = str(len(study.variants))
        rows.append([name, study.baseline[0], count, study.budget, study.question])
    print_table(rows)


def _families() -> None:
    from archwright.hf.families import FAMILIES

    rows = [["model_type", "class of transformers"]]
    rows += [[name, family.architecture] for name, family in sorted(FAMILIES.items())]
    print_table(rows)
    print(f"{len(FAMILIES)} families; archwright import FOLDER reads a checkpoint of any of them.")


def _runs() -> None:
    from archwright.runs import RUNS, find

    rows = [["run", "state", "bits per byte"]]
    for folder in find():
        evals = [r["bits_per_byte"] for r in folder.metrics() if r["kind"] == "eval"]
        reached = f"{evals[-1]:.3f}" if evals and evals[-1] is not None else "-"
        rows.append([str(folder.path), "finished" if folder.finished else "open", reached])
    if rows[1:]:
        print_table(rows)
    else:
        print(f"no runs in {RUNS}{os.sep} yet; archwright train demo makes one")
