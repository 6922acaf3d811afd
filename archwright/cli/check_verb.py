"""archwright check"""

from collections.abc import Sequence

from archwright.cli.words import Parser, add_parts_option, load_parts
from archwright.spec.errors import UserError
from archwright.spec.read import load_run
from archwright.spec.rules import suspicions
from archwright.spec.run_rules import enforce_run

ABOUT = (
    "Check TOML files of models or runs: keys, types, limits, rules between axes, doubtful values."
)


def run(words: Sequence[str]) -> int:
    """Print what is wrong, or what is right; exit with 2 if anything is wrong."""
    parser = Parser("check", ABOUT, "  archwright check mine.toml")
    parser.add_argument("files", nargs="+", metavar="FILE.toml")
    add_parts_option(parser)
    options = parser.parse(words)
    load_parts(options.parts)
    lines: list[str] = []
    for file in options.files:
        try:
            run = load_run(file)
            enforce_run(run)
        except UserError as error:
            lines += [line if file in line else f"{file}: {line}" for line in error.lines]
            continue
        print(f"{file}: good")
        for line in suspicions(run.model):
            print(f"{file}: warning: {line}")
    if lines:
        raise UserError(*lines)
    return 0
