"""archwright check"""

from collections.abc import Sequence
from pathlib import Path

from archwright.cli.parser import Parser
from archwright.machine.loading import loading
from archwright.spec.errors import UserError

ABOUT = (
    "Check TOML files of models or runs: keys, types, limits, rules between axes, doubtful values."
)


def run(words: Sequence[str]) -> int:
    """Print what is wrong, or what is right; exit with 2 if anything is wrong."""
    parser = Parser("check", ABOUT, "  archwright check mine.toml")
    parser.add_argument("files", nargs="+", metavar="FILE.toml")
    options, _ = parser.parse_with_parts(words)
    with loading():
        from archwright.spec.checking import checked
        from archwright.spec.read import given_model
        from archwright.spec.rules import suspicions

    lines: list[str] = []
    for file in options.files:
        try:
            run = checked(file)
        except UserError as error:
            lines += [_located(file, line) for line in error.lines]
            continue
        print(f"{file}: good")
        for line in suspicions(run.model, given_model(file)):
            print(f"{file}: warning: {line}")
    if lines:
        raise UserError(*lines)
    return 0


def _located(file: str, line: str) -> str:
    """Name the file; keys of a model's own file have no prefix there."""
    if Path(file).name in line:
        return line
    from archwright.spec.read import is_recipe
    from archwright.spec.toml import read_toml

    keys = set(read_toml(Path(file)))
    return f"{file}: {line if is_recipe(keys) else line.removeprefix('model.')}"
