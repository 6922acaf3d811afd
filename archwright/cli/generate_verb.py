"""archwright generate"""

from collections.abc import Sequence

from archwright.cli.parser import Parser, check_parts
from archwright.spec.errors import UserError

ABOUT = """\
Let a trained model write: one token after another, drawn from its distribution. What the
generation_config.json of an imported checkpoint says of temperature, top-k and top-p is the default there.
Control characters, which could steer a terminal, are printed as U+FFFD, also into files."""

EXAMPLES = """\
  archwright generate runs/demo --prompt "def "
  archwright generate runs/demo --prompt "import os" --temperature 0.5 --top-k 50 --max-tokens 100
  archwright generate runs/demo --temperature 0                         the likeliest token, always
  archwright generate runs/t5 --source "import <extra_id_0> as np"      fill in what a span left out
  archwright generate runs/pairs --source "la casa" --num-beams 4       search for the likeliest translation"""


SETTINGS = (
    *("max_tokens", "temperature", "top_k", "top_p", "seed"),
    *("num_beams", "length_penalty"),
)


def run(words: Sequence[str]) -> int:
    """Write to standard output as the model goes."""
    parser = Parser("generate", ABOUT, EXAMPLES)
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--prompt", default="", help="text to go on from (default: a new document)")
    parser.add_argument(
        "--source", metavar="TEXT", help="text that the encoder reads, of a model with one"
    )
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="(default: 256)")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy (default: 0.8)")
    parser.add_argument(
        "--top-k", type=int, metavar="K", help="keep the K likeliest (default: all)"
    )
    parser.add_argument("--top-p", type=float, metavar="P", help="keep the likeliest that hold P")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(default: 0)")
    parser.add_argument(
        "--num-beams", type=int, default=1, metavar="N", help="beam search (default: 1, none)"
    )
    parser.add_argument(
        "--length-penalty",
        type=float,
        metavar="A",
        help="of beam search: sums of log p are divided by length^A (default: 1)",
    )
    options, parts = parser.parse_with_parts(words)
    from archwright.generation.writing import stream
    from archwright.runs import RunFolder
    from archwright.runs.load import open_run

    check_parts(RunFolder.open(options.run), parts)
    opened = open_run(options.run)
    settings = {name: getattr(options, name) for name in (*SETTINGS, "source")}
    try:
        texts = stream(opened.model, opened.tokenizer, options.prompt, **settings)
    except UserError as error:
        raise UserError(*map(_as_option, error.lines)) from None
    print(options.prompt, end="", flush=True)
    for text in texts:
        print(text, end="", flush=True)
    print()
    return 0


def _as_option(line: str) -> str:
    """Name a setting as it is written on the command line."""
    setting, colon, rest = line.partition(":")
    named = setting in (*SETTINGS, "source")
    return f"--{setting.replace('_', '-')}:{rest}" if colon and named else line
