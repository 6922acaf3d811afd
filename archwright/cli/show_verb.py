"""archwright show"""

from collections.abc import Sequence

from archwright.cli.parser import Parser

ABOUT = """\
Show what a model chose: its layers drawn, its choices with their sources, where its parameters are, and what
it costs.
With --values, --all or --blame, show values by the paths that set them; with --toml, a file to start from."""

EXAMPLES = """\
  archwright show gemma-3-27b
  archwright show mixtral-8x7b --tiny        the same choices at a size that trains in seconds
  archwright show modern --values            every value that is not left at its default
  archwright show modern --all               defaults, too, and what "auto" comes to
  archwright show modern --blame             which file and which source set each value
  archwright show modern dim=256 norm.kind=layer
  archwright show gemma-3-1b --toml > mine.toml    a file of your own to start from
  archwright show modern dim=256 --costs     cache, FLOPs and memory of a model that is not published
  archwright show Llama-3.2-1B               a folder with a config.json, or that file
  archwright show modern norm.kind=layer --exportable    can transformers load it, and what blocks that"""


def run(words: Sequence[str]) -> int:
    """Print a model's values."""
    parser = Parser("show", ABOUT, EXAMPLES)
    parser.add_argument(
        "model", metavar="MODEL", help="a model, a TOML file, a run, or a folder with config.json"
    )
    parser.add_argument("assignments", nargs="*", metavar="KEY=VALUE", help="values to change")
    parser.add_argument("--tiny", action="store_true", help="scale the model down, choices and all")
    parser.add_argument(
        "--toml", action="store_true", help="print a file of the model, to change and to train"
    )
    parser.add_argument("--values", action="store_true", help="show values, by path")
    parser.add_argument("--all", action="store_true", help="show defaults, too")
    parser.add_argument("--blame", action="store_true", help="say where each value comes from")
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
