"""The command `archwright show`: print a model's layers, choices, parameters and costs, or its values."""

from collections.abc import Sequence

from archwright.cli.parser import Parser

ABOUT = """\
Show the choices of a model: a diagram of its layers, choices with their sources, parameters by part, and
costs.
With --values, --all or --blame, show values by path; with --toml, print a file to start from."""

EXAMPLES = """\
  archwright show gemma-3-27b
  archwright show mixtral-8x7b --tiny        the same choices at a size that trains in seconds
  archwright show modern --values            all values other than defaults
  archwright show modern --all               also defaults, and the results of "auto"
  archwright show modern --blame             the file and the source of each value
  archwright show modern dim=256 norm.kind=layer
  archwright show gemma-3-1b --toml > mine.toml    a file of your own to start from
  archwright show modern dim=256 --costs     cache, FLOPs and memory of an unpublished model
  archwright show Llama-3.2-1B               a folder with a config.json, or that file
  archwright show modern norm.kind=layer --exportable    can transformers load it, or which choices block it?"""


def run(words: Sequence[str]) -> int:
    """Print a model's card, values or TOML file."""
    parser = Parser("show", ABOUT, EXAMPLES)
    parser.add_argument(
        "model", metavar="MODEL", help="a model, a TOML file, a run, or a folder with config.json"
    )
    parser.add_argument("assignments", nargs="*", metavar="KEY=VALUE", help="values to change")
    parser.add_argument("--tiny", action="store_true", help="scale the model down, choices and all")
    parser.add_argument(
        "--toml", action="store_true", help="print the model as a file to edit and train"
    )
    parser.add_argument("--values", action="store_true", help="show values, by path")
    parser.add_argument("--all", action="store_true", help="also show defaults")
    parser.add_argument("--blame", action="store_true", help="show the origin of each value")
    parser.add_argument(
        "--costs", action="store_true", help="count cache, FLOPs and memory also of changed models"
    )
    parser.add_argument(
        "--exportable",
        action="store_true",
        help="show which Hugging Face families can hold this model",
    )
    options, _ = parser.parse_with_parts(words)
    from archwright.cli.model_lines import print_model

    print_model(options)
    return 0
