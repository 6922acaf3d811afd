"""The command `archwright generate`: generate text with the model of a run."""

import re
import sys
from collections.abc import Sequence

from archwright.cli.parser import Parser, as_options, check_parts
from archwright.spec.errors import UserError
from archwright.spec.files import expanded, read_text

ABOUT = """\
Generate text with a trained model, sampling one token after another. In an encoder-decoder, the encoder
reads a source, and decoding is greedy by default. For an imported checkpoint, the defaults of temperature,
top-k, top-p and beams come from its generation_config.json. Control characters, which could steer a
terminal, are printed as U+FFFD, also into files."""

EXAMPLES = """\
  archwright generate runs/demo --prompt "def "
  archwright generate runs/demo --prompt "import os" --temperature 0.5 --top-k 50 --max-new-tokens 100
  archwright generate runs/demo --temperature 0                         always the likeliest token
  archwright generate runs/t5 --source "import <extra_id_0> as np"      fill in a masked span
  archwright generate runs/pairs --source "la casa" --num-beams 4       search for the likeliest translation
  archwright generate runs/pairs --source-file sentences.txt            an answer for each line"""


SETTINGS = (
    *("max_new_tokens", "temperature", "top_k", "top_p", "seed"),
    *("num_beams", "length_penalty", "early_stopping"),
)
MOST_BYTES = 1 << 28
"""Maximum size of a file of sources."""


def run(words: Sequence[str]) -> int:
    """Stream generated text to standard output."""
    options, parts = _parser().parse_with_parts(words)
    if options.source is not None and options.source_file is not None:
        raise UserError("--source-file: given together with --source; expected one of them")
    sources = None if options.source_file is None else _lines(options.source_file)
    if options.prompt == "-":
        options.prompt = _standard_input("--prompt")
    from archwright.generation.writing import generate_many, stream
    from archwright.runs import RunFolder
    from archwright.runs.load import open_run

    check_parts(RunFolder.open(options.run), parts)
    opened = open_run(options.run)
    settings = {name: getattr(options, name) for name in SETTINGS}
    try:
        if sources is not None:
            for answer in generate_many(opened, sources, options.prompt, **settings):
                print(" ".join(answer.splitlines()))
            return 0
        texts = stream(
            opened.model, opened.tokenizer, options.prompt, source=options.source, **settings
        )
    except UserError as error:
        named = as_options(error, (*SETTINGS, "source"))
        if sources is not None:
            lines = (re.sub("^--source:", "--source-file:", line) for line in named.lines)
            named = UserError(*lines)
        raise named from None
    print(options.prompt, end="", flush=True)
    for text in texts:
        print(text, end="", flush=True)
    print()
    return 0


def _parser() -> Parser:
    parser = Parser("generate", ABOUT, EXAMPLES)
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument(
        "--prompt",
        default="",
        help="text to continue, - for standard input (default: a new document)",
    )
    parser.add_argument(
        "--source", metavar="TEXT", help="text for the encoder of an encoder-decoder"
    )
    parser.add_argument(
        "--source-file",
        metavar="FILE",
        help="one source per line, - for standard input; prints one answer per line",
    )
    parser.add_argument(
        "--max-new-tokens", type=int, default=256, metavar="N", help="(default: 256)"
    )
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="0 is greedy (default: 0.8; with a source 0)"
    )
    parser.add_argument(
        "--top-k", type=int, metavar="K", help="keep the K likeliest (default: all)"
    )
    parser.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="sample from the smallest set of tokens with probability P (nucleus sampling)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(default: 0)")
    parser.add_argument("--num-beams", type=int, metavar="N", help="beam search (default: 1, none)")
    parser.add_argument(
        "--length-penalty",
        type=float,
        metavar="A",
        help="of beam search: sums of log p are divided by length^A (default: 1)",
    )
    parser.add_argument(
        "--early-stopping",
        action="store_true",
        default=None,
        help="of beam search: stop when num-beams texts have ended",
    )
    return parser


def _standard_input(option: str) -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{option}: standard input: not UTF-8 at byte {error.start}") from None


def _lines(name: str) -> list[str]:
    """Return the lines of a file, or of standard input."""
    if name == "-":
        text = _standard_input("--source-file")
    else:
        try:
            text = read_text(expanded(name), MOST_BYTES, "a text")
        except OSError as error:
            raise UserError(f'--source-file: cannot read "{name}": {error.strerror}') from None
        except UserError as error:
            raise UserError(f"--source-file: {error}") from None
    lines = text.removeprefix("\ufeff").split("\n")
    lines = [line.rstrip("\r") for line in (lines if lines[-1] else lines[:-1])]
    if not lines:
        raise UserError(f'--source-file: "{name}" is empty; expected a source in each line')
    return lines
