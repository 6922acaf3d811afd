"""archwright eval"""

import json
import re
from collections.abc import Sequence

from archwright import format as fmt
from archwright.cli.parser import Parser, check_parts
from archwright.spec.errors import UserError

ABOUT = """\
Measure a trained model on text. Every document starts from the token that begins a text (end-of-text, but for
some imported models); a model of the next token predicts each token of the text once; bits per byte are its
nats over its UTF-8 bytes and ln 2. A run on a task, such as data.text=mqar, is judged on held-out examples
of it: the share of answers that are right, and nats per answer; one on pairs (data.pairs) on held-out pairs."""

EXAMPLES = """\
  archwright eval runs/demo --text mine.txt
  archwright eval runs/demo --text notes/ 'more/*.jsonl' --json
  archwright eval runs/mqar                                   the answers of a task"""


def run(words: Sequence[str]) -> int:
    """Print the evaluation of a run on texts."""
    parser = Parser("eval", ABOUT, EXAMPLES)
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument(
        "--text",
        nargs="+",
        metavar="TEXT",
        help="files, folders, globs, -, stdlib (a task or pairs: none)",
    )
    parser.add_argument("--stride", type=int, metavar="N", help="(default: half the context)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options, parts = parser.parse_with_parts(words)
    from archwright.runs import RunFolder
    from archwright.runs.load import open_run
    from archwright.training.evaluation import evaluate_held_out, evaluate_text

    check_parts(RunFolder.open(options.run), parts)
    opened = open_run(options.run)
    length = opened.spec.model.context_length
    if options.stride is not None and not 1 <= options.stride <= length:
        raise UserError(
            f"--stride: found {options.stride}; expected 1 to {length}, the context of the model"
        )
    try:
        texts, stride = options.text, options.stride
        result = (
            evaluate_text(opened, *texts, stride=stride) if texts else evaluate_held_out(opened)
        )
    except UserError as error:
        raise UserError(*(re.sub("^text:", "--text:", line) for line in error.lines)) from None
    if options.json:
        print(json.dumps(result.record()))
        return 0
    if result.accuracy is not None:
        print(
            f"accuracy         {fmt.accuracy(result.accuracy)}   of {result.num_answers:,} answers"
        )
        print(f"nats per answer  {result.nats_per_token:.4f}")
        return 0
    unit = opened.spec.objective.loss_unit
    width = len(f"{unit}  ")
    print(f"{unit:{width}} {result.nats_per_token:.4f}")
    print(f"{'perplexity':{width}} {result.perplexity:.2f}   (e^{unit})")
    if result.bits_per_byte is not None:
        print(f"{'bits per byte':{width}} {result.bits_per_byte:.4f}")
    print(f"{'text':{width}} {result.num_bytes:,} bytes, {result.num_tokens:,} tokens")
    return 0
