"""archwright schema"""

import json
from collections.abc import Sequence

from archwright.cli.words import Parser, add_parts_option, load_parts
from archwright.spec.choice import Spec
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import RunSpec

ABOUT = "Print the JSON schema of model or run files, for editors that complete and check TOML."


def run(words: Sequence[str]) -> int:
    """Print a schema."""
    parser = Parser("schema", ABOUT, "  archwright schema model > model.schema.json")
    parser.add_argument("what", nargs="?", default="model", choices=("model", "run"))
    add_parts_option(parser)
    options = parser.parse(words)
    load_parts(options.parts)
    files: dict[str, type[Spec]] = {"model": ModelSpec, "run": RunSpec}
    print(json.dumps(files[options.what].model_json_schema(), indent=2))
    return 0
