"""archwright schema"""

import json
from collections.abc import Sequence

from archwright.cli.listings import listing
from archwright.cli.parser import Parser
from archwright.spec.errors import UserError, nearest

ABOUT = (
    "Print the JSON schema of model, run or study files, for editors that complete and check TOML."
)

FILES = ("model", "run", "study")


def run(words: Sequence[str]) -> int:
    """Print a schema."""
    parser = Parser("schema", ABOUT, "  archwright schema model > model.schema.json")
    parser.add_argument(
        "what", nargs="?", default="model", metavar="WHAT", help="model, run or study"
    )
    options, parts = parser.parse_with_parts(words)
    joined = bool(parts)
    if options.what not in FILES:
        hint = nearest(options.what, FILES)
        raise UserError(f'schema "{options.what}": expected one of {", ".join(FILES)}.{hint}')
    print(json.dumps(listing(f"schema_{options.what}", resolve=joined), indent=2))
    return 0
