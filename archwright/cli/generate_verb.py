"""archwright generate"""

import sys
from collections.abc import Sequence

from archwright.cli.words import Parser, add_parts_option, load_parts
from archwright.spec.errors import UserError

ABOUT = """\
Let a trained model write: one token after another, drawn from its distribution."""

EXAMPLES = """\
  archwright generate runs/demo --prompt "def "
  archwright generate runs/demo --prompt "import os" --temperature 0.5 --top-k 50 --max-tokens 100
  archwright generate runs/demo --temperature 0                         the likeliest token, always"""


def run(words: Sequence[str]) -> int:
    """Write to standard output as the model goes."""
    parser = Parser("generate", ABOUT, EXAMPLES)
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--prompt", default="", help="text to go on from (default: a new document)")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="(default: 256)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="0 is greedy (default: 0.8)"
    )
    parser.add_argument(
        "--top-k", type=int, default=0, metavar="K", help="keep the K likeliest (default: all)"
    )
    parser.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="keep the likeliest that hold P"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(default: 0)")
    add_parts_option(parser)
    options = parser.parse(words)
    load_parts(options.parts)
    from archwright.generation.writing import stream
    from archwright.runs.opened import open_run

    opened = open_run(options.run)
    print(options.prompt, end="", flush=True)
    try:
        for text in stream(
            opened.model,
            opened.tokenizer,
            options.prompt,
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            seed=options.seed,
        ):
            print(text, end="", flush=True)
    except ValueError as error:
        raise UserError(f"--{str(error).replace('_', '-', 1)}") from None
    print()
    sys.stdout.flush()
    return 0
