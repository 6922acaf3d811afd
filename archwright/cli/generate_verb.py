"""The command `archwright generate`: generate text with the model of a run."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from archwright.cli.parser import Parser, as_options, check_parts
from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from argparse import Namespace

    from archwright.generation.writing import Settings


ABOUT = """\
Generate text with a trained model, one token after another. By default, tokens are sampled at temperature
0.8; in an encoder-decoder, the encoder reads a source and decoding is greedy. For an imported checkpoint,
the defaults come from its generation_config.json. The same seed gives the same text.

Several prompts or samples are generated side by side, and each text is the same as alone. The text goes to
standard output and the speed to standard error. Control characters, which could steer a terminal, are
printed as U+FFFD, also into files; --json escapes them instead."""

EXAMPLES = """\
  archwright generate runs/demo --prompt "def "
  archwright generate runs/demo --prompt "import os" --temperature 0.5 --top-k 50 --max-new-tokens 100
  archwright generate runs/demo --temperature 0                         always the likeliest token
  archwright generate runs/demo --prompt "def " -n 5 --stop "return"    five samples, each up to "return"
  archwright generate runs/a runs/b --prompt "The "                     two models, one after another
  archwright generate Llama-3.2-1B-Instruct --chat -i                   a checkpoint of transformers
  archwright generate runs/chat --chat --prompt "What is a norm?"       by the checkpoint's chat template
  archwright generate runs/chat --chat -i                               a conversation
  archwright generate runs/demo --prompt-file prompts.jsonl --json      {"prompt": "def "} in each line
  archwright generate runs/t5 --source "import <extra_id_0> as np"      fill in a masked span
  archwright generate runs/pairs --source "la casa" --num-beams 4       search for the likeliest translation
  archwright generate runs/pairs --source-file sentences.txt            an answer for each line"""

SETTINGS = (
    *("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "stop"),
    *("lookup", "seed", "num_beams", "length_penalty", "early_stopping"),
)
EXCLUDE = (
    ("prompt_file", ("prompt", "source_file", "interactive")),
    ("source_file", ("source", "interactive", "chat")),
    ("interactive", ("json", "num_samples", "source")),
    ("chat", ("source",)),
)
"""Options that exclude others."""


def run(words: Sequence[str]) -> int:
    """Generate text on standard output."""
    options, parts = _parser().parse_with_parts(words)
    _check(options)
    from archwright.cli.generate_modes import converse, print_all, requests
    from archwright.hf.import_export import is_checkpoint, open_any
    from archwright.model.quantisation import quantise
    from archwright.runs import RunFolder

    settings = cast("Settings", {name: getattr(options, name) for name in SETTINGS})
    asked = [] if options.interactive else requests(options, settings)
    for name in options.runs:
        if RunFolder(name).exists or not is_checkpoint(name):
            check_parts(RunFolder.open(name), parts)
    try:
        for name in options.runs:
            opened = open_any(name, device=options.device, dtype=options.dtype)
            if options.weights:
                quantise(opened.model, options.weights)
            if options.interactive:
                return converse(opened, options, settings)
            if options.runs[1:] and not options.json:
                print(f"=== {name} ===")
            print_all(opened, asked, options)
    except UserError as error:
        raise as_options(error, (*SETTINGS, "source", "num_samples", "device", "dtype")) from None
    return 0


def _check(options: "Namespace") -> None:
    """Refuse options that exclude each other."""
    for name, excluded in EXCLUDE:
        for other in excluded:
            if all(getattr(options, n) not in (None, False) for n in (name, other)):
                first, second = (f"--{n.replace('_', '-')}" for n in (name, other))
                raise UserError(f"{first}: given together with {second}; expected one of them")
    if options.system is not None and not options.chat:
        raise UserError("--system: found without --chat, of which it is a part; add --chat")
    if options.batch_size < 1:
        raise UserError(f"--batch-size: found {options.batch_size}; expected 1 or more")
    if options.runs[1:]:
        if options.interactive:
            raise UserError(f"--interactive: found {len(options.runs)} runs; expected one")
        for word in options.runs[1:]:
            if not Path(word).exists():
                hint = f"Did you mean --prompt {shlex.quote(word)}?"
                raise UserError(f"{word}: there is no such run. {hint}")


def _parser() -> Parser:
    parser = Parser("generate", ABOUT, EXAMPLES)
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="a run folder, or a folder of transformers; or several to compare",
    )
    group = parser.add_argument_group("prompts")
    group.add_argument(
        "--prompt", help="text to continue, - for standard input (default: a new document)"
    )
    group.add_argument(
        "--prompt-file",
        metavar="FILE",
        help='one prompt per line, - for standard input. In a .jsonl file, an object per line: "prompt" (or "messages" '
        'of a conversation, or "source") and settings, such as "temperature"',
    )
    group.add_argument(
        "--source", metavar="TEXT", help="text for the encoder of an encoder-decoder"
    )
    group.add_argument(
        "--source-file",
        metavar="FILE",
        help="one source per line, - for standard input; prints one answer per line",
    )
    group.add_argument(
        "--chat",
        action="store_true",
        help="prompts are messages of a user, answered by the checkpoint's chat template",
    )
    group.add_argument("--system", metavar="TEXT", help="system message of the conversation")
    group.add_argument(
        *("-i", "--interactive"),
        action="store_true",
        help="read prompts from the terminal, with --chat as one conversation; Ctrl-C ends an answer, Ctrl-D ends all",
    )
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-new-tokens", type=int, metavar="N", help="(default: 256)")
    group.add_argument(
        "--temperature", type=float, metavar="T", help="0 is greedy (default: 0.8; with a source 0)"
    )
    group.add_argument("--top-k", type=int, metavar="K", help="keep the K likeliest (default: all)")
    group.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="sample from the smallest set of tokens with probability P (nucleus sampling)",
    )
    group.add_argument(
        "--min-p",
        type=float,
        metavar="P",
        help="sample from tokens with at least P times the largest probability",
    )
    group.add_argument(
        "--repetition-penalty",
        type=float,
        metavar="X",
        help="above 1: divide positive logits of earlier tokens by X, multiply negative ones (default: 1)",
    )
    group.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        help="end before this text; may be repeated",
    )
    group.add_argument(
        "--lookup",
        type=int,
        metavar="N",
        help="of --temperature 0: guess N tokens at a time from the text so far; the same text, faster if it repeats",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="(default: 0)")
    group.add_argument(
        *("-n", "--num-samples"),
        type=int,
        metavar="N",
        help="texts per prompt, with the seeds seed, seed + 1, ... (default: 1)",
    )
    group = parser.add_argument_group("beam search")
    group.add_argument(
        "--num-beams", type=int, metavar="N", help="number of beams (default: 1, none)"
    )
    group.add_argument(
        "--length-penalty",
        type=float,
        metavar="A",
        help="sums of log p are divided by length^A (default: 1)",
    )
    group.add_argument(
        "--early-stopping",
        action="store_true",
        default=None,
        help="stop when num-beams texts have ended",
    )
    group = parser.add_argument_group("machine and output")
    group.add_argument(
        "--batch-size", type=int, default=64, metavar="N", help="texts side by side (default: 64)"
    )
    group.add_argument(
        "--device",
        metavar="NAME",
        help="cpu, cuda, cuda:N or auto: CUDA if there is one (default: cpu)",
    )
    group.add_argument(
        "--dtype",
        metavar="NAME",
        help="of the weights: float32 (default), bfloat16 or float16; also fp32, bf16, fp16",
    )
    group.add_argument(
        "--weights",
        choices=("int8", "int4"),
        help="round the weights to 8 or 4 bits: less memory, and faster if memory limits the speed",
    )
    group.add_argument(
        "--json",
        action="store_true",
        help="print an object per text: prompt, text, finish_reason, counts and tokens",
    )
    group.add_argument("--quiet", action="store_true", help="do not print the speed")
    return parser
