"""How verbs read their words: options anywhere, dotted assignments between them."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from archwright.spec.errors import UserError


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are user errors like all others."""

    def __init__(self, verb: str, about: str, examples: str = "") -> None:
        super().__init__(
            prog=f"archwright {verb}",
            description=about,
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}. See {self.prog} --help")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the options; they may stand before, between and after the other words."""
        return self.parse_intermixed_args(words)


def add_parts_option(parser: Parser) -> None:
    """Let a verb take choices from outside the package."""
    parser.add_argument(
        "--parts",
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file whose choices join the package's; it is run, so trust it",
    )


def load_parts(files: Sequence[str]) -> list[dict[str, str]]:
    """Run files of choices; return their names and hashes, which a run records."""
    import hashlib
    import runpy

    found = []
    for file in files:
        path = Path(file)
        if not path.is_file():
            raise UserError(f"--parts {file}: no such file")
        runpy.run_path(str(path))
        found.append({"name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
    return found
