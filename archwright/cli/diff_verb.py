"""The command `archwright diff`: print the differences between two models."""

from collections.abc import Sequence

from archwright.cli.parser import Parser, terminal_width
from archwright.format import columns

ABOUT = """\
Show the differences between two models, in choices and in costs. Costs of a changed or
unpublished model are counted with --costs, which takes a second or two."""

EXAMPLES = """\
  archwright diff textbook modern
  archwright diff gemma-2-27b gemma-3-27b
  archwright diff modern norm.kind=layer position.kind=alibi
  archwright diff modern attention.num_kv_heads=1 --costs
  archwright diff modern mine.toml --values    all differing values, by path"""


def run(words: Sequence[str]) -> int:
    """Print the differences between two models, in choices or in values."""
    parser = Parser("diff", ABOUT, EXAMPLES)
    parser.add_argument(
        "old", metavar="A", help="a model, a TOML file, a run, or a folder with config.json"
    )
    parser.add_argument("new", metavar="B", help="another model, or a KEY=VALUE that changes A")
    parser.add_argument("assignments", nargs="*", metavar="KEY=VALUE", help="values to change in B")
    parser.add_argument("--values", action="store_true", help="print values, by path")
    parser.add_argument(
        "--costs", action="store_true", help="count cache, FLOPs and memory also of changed models"
    )
    options, _ = parser.parse_with_parts(words)
    from archwright.catalogue.summaries import differences
    from archwright.cli.cost_words import cost_differences
    from archwright.cli.models import check_words, load_model
    from archwright.spec.read import diff

    changes_old = "=" in options.new  # diff modern norm.kind=layer: the model and its change
    changes = [*([options.new] if changes_old else []), *options.assignments]
    before = load_model(options.old)
    check_words(options.old, changes, run=False)
    after = before if changes_old else load_model(options.new)
    old, new = before.spec, after.spec.override(*changes)
    if options.values:
        print("\n".join(diff(old, new)) or "no difference")
    elif changed := differences(old, new):
        of_both = (old, before.objective), (new, after.objective)
        changed += cost_differences(*of_both, count=options.costs)
        rows = [("", old.name, " ".join(changes) if changes_old else new.name), *changed]
        print("\n".join(columns(rows, wrapped=(1, 2), width=terminal_width())))
    else:
        print("no difference")
    return 0
