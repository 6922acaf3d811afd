"""archwright diff"""

from collections.abc import Sequence

from archwright.cli.words import Parser, add_parts_option, load_parts
from archwright.spec.read import diff, load

ABOUT = "Show what differs between two models, value by value."

EXAMPLES = """\
  archwright diff textbook modern
  archwright diff modern mine.toml"""


def run(words: Sequence[str]) -> int:
    """Print one line for each value that differs."""
    parser = Parser("diff", ABOUT, EXAMPLES)
    parser.add_argument("old", metavar="A", help="a model or a TOML file")
    parser.add_argument("new", metavar="B", help="another one")
    parser.add_argument("assignments", nargs="*", metavar="KEY=VALUE", help="values to change in B")
    add_parts_option(parser)
    options = parser.parse(words)
    load_parts(options.parts)
    lines = diff(load(options.old), load(options.new).override(*options.assignments))
    print("\n".join(lines) if lines else "no difference")
    return 0
