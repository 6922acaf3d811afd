"""The command `archwright schema`: print the JSON schema of a kind of file."""

import json
from collections.abc import Sequence

from archwright.cli.listings import listing
from archwright.cli.parser import Parser

ABOUT = (
    "Print the JSON schema of model, run or study files, for editors that complete and check TOML."
)

FILES = ("model", "run", "study")


def run(words: Sequence[str]) -> int:
    """Print the JSON schema of a kind of file."""
    parser = Parser("schema", ABOUT, "  archwright schema model > model.schema.json")
    parser.add_argument(
        "file", nargs="?", default="model", choices=FILES, metavar="FILE", help=", ".join(FILES)
    )
    options, _ = parser.parse_with_parts(words)
    print(json.dumps(listing(f"schema_{options.file}"), indent=2))
    return 0
