"""The command `archwright eval`: evaluate a run on texts."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from archwright import format as fmt
from archwright.cli.parser import Parser, as_options, check_parts
from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from archwright.spec.run_spec import RunSpec
    from archwright.training.evaluation import Answers, Evaluation

ABOUT = """\
Evaluate a trained model on text. Every document starts with the token for the beginning of a text
(end-of-text, except in some imported models). A next-token model predicts each token once; bits per byte
are the total nats divided by ln 2 and the number of UTF-8 bytes. A run on a task, such as data.text=mqar,
is evaluated on held-out examples (accuracy and nats per answer), and a run on pairs (data.pairs) on
held-out pairs. For encoder-decoders, --pairs measures the loss of targets, in nats per predicted token, and
--answers the generated answers."""

EXAMPLES = """\
  archwright eval runs/demo                                   its own held-out text
  archwright eval runs/demo --text mine.txt
  archwright eval runs/demo --text notes/ 'more/*.jsonl' --json
  archwright eval runs/mqar                                   the answers of a task
  archwright eval runs/translator --pairs test.tsv --answers  BLEU, if sacrebleu is installed"""


def run(words: Sequence[str]) -> int:
    """Print the evaluation of a run on texts."""
    parser = Parser("eval", ABOUT, EXAMPLES)
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument(
        "--text",
        nargs="+",
        metavar="TEXT",
        help="files, folders, globs, -, stdlib (default: the held-out text of the run)",
    )
    parser.add_argument(
        "--pairs", metavar="FILE", help="a .tsv or .jsonl file of sources and targets, or synthetic"
    )
    parser.add_argument(
        "--answers",
        action="store_true",
        help="with --pairs: also generate an answer to each source and compare it with the target",
    )
    parser.add_argument(
        "--num-beams", type=int, metavar="N", help="of --answers: beam search (default: 1, none)"
    )
    parser.add_argument("--stride", type=int, metavar="N", help="(default: half the context)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options, parts = parser.parse_with_parts(words)
    _check(options)
    from archwright.runs import RunFolder
    from archwright.runs.load import open_run
    from archwright.spec.objectives import OF_PAIRS
    from archwright.training.evaluation import (
        evaluate_answers,
        evaluate_held_out,
        evaluate_pairs,
        evaluate_text,
    )

    check_parts(RunFolder.open(options.run), parts)
    opened = open_run(options.run)
    length = opened.spec.model.context_length
    if options.stride is not None and not 1 <= options.stride <= length:
        raise UserError(
            f"--stride: found {options.stride}; expected 1 to {length}, the context of the model"
        )
    try:
        if options.pairs:
            result = evaluate_pairs(opened, options.pairs)
        elif options.text:
            result = evaluate_text(opened, *options.text, stride=options.stride)
        else:
            result = evaluate_held_out(opened, options.stride)
        answers = None
        if options.answers:
            answers = evaluate_answers(opened, options.pairs, num_beams=options.num_beams)
    except UserError as error:
        raise as_options(error, ("text", "pairs", "num_beams")) from None
    if options.json:
        more = {} if answers is None else {"answers": asdict(answers)}
        print(json.dumps(result.record() | more))
    else:
        objective = OF_PAIRS if options.pairs else opened.spec.objective
        print("\n".join(fmt.columns(_rows(opened.spec, objective.loss_unit, result, answers))))
    return 0


def _rows(
    run: "RunSpec", unit: str, result: "Evaluation", answers: "Answers | None"
) -> list[tuple[str, str]]:
    """Return the names and values of an evaluation."""
    if result.accuracy is not None:
        right = f"{fmt.accuracy(result.accuracy)}   of {result.num_answers:,} answers"
        return [("accuracy", right), ("nats per answer", f"{result.nats_per_token:.4f}")]
    rows = [(unit, f"{result.nats_per_token:.4f}")]
    rows.append(("perplexity", f"{result.perplexity:.2f}   (e^{unit})"))
    if result.bits_per_byte is not None:
        rows.append(("bits per byte", f"{result.bits_per_byte:.4f}"))
    if result.token_accuracy is not None:
        rows.append(("tokens right", fmt.accuracy(result.token_accuracy)))
    if result.second_loss is not None and result.second_accuracy is not None:
        second, case = run.second_task, run.second_cases
        right = {"row": "rows right", "token": "judged right"}.get(case, "right further ahead")
        rows.append((second, f"{result.second_loss:.4f}   nats per {case}"))
        rows.append((right, fmt.accuracy(result.second_accuracy)))
    rows.append(("text", f"{result.num_bytes:,} bytes, {result.num_tokens:,} tokens"))
    if answers is not None:
        bleu = "sacrebleu is not installed" if answers.bleu is None else f"{answers.bleu:.2f}"
        rows.append(("exact answers", f"{answers.exact:.2%} of {answers.num_answers:,}"))
        rows.append(("BLEU", bleu))
    return rows


def _check(options: argparse.Namespace) -> None:
    """Raise a UserError if options exclude each other or a required option is missing."""
    lines = []
    if options.pairs and options.text:
        lines.append("--text: given together with --pairs; expected one of them")
    if options.pairs and options.stride is not None:
        lines.append(
            "--stride: has no effect on --pairs, which are not cut into windows; leave it out"
        )
    if options.answers and not options.pairs:
        lines.append("--answers: expected --pairs, a file with the sources to answer")
    if options.num_beams is not None and not options.answers:
        lines.append("--num-beams: a setting of --answers; add --answers or leave it out")
    if lines:
        raise UserError(*lines)
