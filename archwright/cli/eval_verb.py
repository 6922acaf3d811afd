"""The command `archwright eval`: evaluate a run on texts."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from archwright import format as fmt
from archwright.cli.parser import Parser, as_options, check_parts
from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from archwright.runs.load import OpenRun
    from archwright.spec.run_spec import RunSpec
    from archwright.training.evaluation import Answers, Evaluation

ABOUT = """\
Evaluate a trained model on text. Every document starts with the token for the beginning of a text
(end-of-text, except in some imported models). A next-token model predicts each token once; bits per byte
are the total nats divided by ln 2 and the number of UTF-8 bytes. Intervals are 95 % intervals over resampled
documents (over stretches of the text if there are fewer than 20). The loss by position is measured in full
windows that do not overlap: position n has n tokens of context. RUN may be a folder of transformers, such as
an export. Two runs are compared on the same documents.
A run on a task, such as data.text=mqar, is evaluated on held-out examples (accuracy and nats per answer), and
a run on pairs (data.pairs) on held-out pairs. For encoder-decoders, --pairs measures the loss of targets, in
nats per predicted token, and --answers the generated answers. --tasks runs tasks of lm_eval, EleutherAI's
lm-evaluation-harness, and prints its table."""

EXAMPLES = """\
  archwright eval runs/demo                                   its own held-out text
  archwright eval runs/demo --text mine.txt
  archwright eval runs/demo --text notes/ 'more/*.jsonl' --json
  archwright eval runs/demo --text book.txt --length 4096     the loss beyond the context of training
  archwright eval runs/a runs/b --text notes/                 the difference, with an interval
  archwright eval runs/demo --weights int8                    what rounding the weights costs
  archwright eval Llama-3.2-1B --text mine.txt --dtype bfloat16
  archwright eval runs/demo --tasks lambada_openai,piqa --limit 100
  archwright eval runs/mqar                                   the answers of a task
  archwright eval runs/translator --pairs test.tsv --answers  BLEU, if sacrebleu is installed"""

OPTIONS = ("text", "pairs", "num_beams", "length", "device", "dtype", "tasks", "include_path")
"""Settings that errors name."""


def run(words: Sequence[str]) -> int:
    """Print the evaluation of a run on texts."""
    options, parts = _parser().parse_with_parts(words)
    _check(options)
    from archwright.hf.import_export import is_checkpoint, open_any
    from archwright.model.quantisation import quantise
    from archwright.runs import RunFolder
    from archwright.spec.objectives import OF_PAIRS
    from archwright.training.evaluation import (
        evaluate_answers,
        evaluate_held_out,
        evaluate_pairs,
        evaluate_text,
    )

    for path in options.run:
        if RunFolder(path).exists or not is_checkpoint(path):
            check_parts(RunFolder.open(path), parts)
    try:
        if options.tasks:
            return _tasks(options)
        place = {"device": options.device, "dtype": options.dtype}
        opened = [open_any(path, **place) for path in options.run]
        for model in opened:
            length = model.spec.model.context_length
            if options.stride is not None and not 1 <= options.stride <= length:
                raise UserError(
                    f"--stride: found {options.stride}; expected 1 to {length}, the context of the model"
                )
        windows = {"stride": options.stride, "length": options.length}
        if options.weights:
            opened.append(open_any(options.run[0], **place))
            quantise(opened[1].model, options.weights)
        if opened[1:]:
            return _compare(options, opened, windows)
        (model,) = opened
        if options.pairs:
            result = evaluate_pairs(model, options.pairs)
        elif options.text:
            result = evaluate_text(model, *options.text, **windows)
        else:
            result = evaluate_held_out(model, **windows)
        answers = None
        if options.answers:
            answers = evaluate_answers(model, options.pairs, num_beams=options.num_beams)
    except UserError as error:
        raise as_options(error, OPTIONS) from None
    if options.json:
        more = {} if answers is None else {"answers": asdict(answers)}
        print(json.dumps(result.record() | more))
    else:
        objective = OF_PAIRS if options.pairs else model.spec.objective
        print("\n".join(fmt.columns(_rows(model.spec, objective.loss_unit, result, answers))))
        print("\n".join(_curves([result], model.spec.model.context_length)), end="")
    return 0


def _parser() -> Parser:
    parser = Parser("eval", ABOUT, EXAMPLES)
    parser.add_argument(
        "run", metavar="RUN", nargs="+", help="a run folder, or a folder of transformers; or two"
    )
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
    parser.add_argument(
        "--length",
        type=int,
        metavar="N",
        help="longest context of the loss by position; may exceed the context of training, unless positions end there "
        "(default: the context)",
    )
    parser.add_argument(
        "--tasks",
        metavar="NAME[,NAME]",
        help="tasks of lm_eval instead of a text; their data must be on this machine, or lm_eval downloads them",
    )
    parser.add_argument(
        "--include-path", metavar="FOLDER", help="of --tasks: a folder with further task files"
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="of --tasks: examples per task (default: all)"
    )
    parser.add_argument(
        "--device", default="auto", metavar="NAME", help="cpu, cuda, or auto: CUDA if available"
    )
    parser.add_argument(
        "--dtype",
        default="float32",
        metavar="NAME",
        help="of the weights: float32 (default), bfloat16 or float16; also fp32, bf16, fp16",
    )
    parser.add_argument(
        "--weights",
        choices=("int8", "int4"),
        help="what rounding the weights to 8 or 4 bits changes, as of a second run",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _tasks(options: argparse.Namespace) -> int:
    """Print lm_eval's table of tasks."""
    from archwright.training.harness import evaluate_tasks, table

    results = evaluate_tasks(
        options.run[0],
        options.tasks.split(","),
        include_path=options.include_path,
        limit=options.limit,
        device=options.device,
        dtype=options.dtype,
    )
    print(json.dumps(results["results"]) if options.json else table(results))
    return 0


def _compare(
    options: argparse.Namespace, opened: "Sequence[OpenRun]", windows: dict[str, Any]
) -> int:
    """Print two evaluations on the same text, and their difference."""
    from archwright.training.paired import compare_on_text

    comparison = compare_on_text(opened[0], opened[1], *(options.text or ()), **windows)
    if options.json:
        print(json.dumps(comparison.record()))
        return 0
    both = comparison.first, comparison.second
    rows: list[tuple[str, ...]] = [("", "A", "B", "B - A (95 % interval)")]
    for name, difference, values in (
        ("nats per token", comparison.nats_per_token, [e.nats_per_token for e in both]),
        ("bits per byte", comparison.bits_per_byte, [e.bits_per_byte for e in both]),
    ):
        cells = ["–" if value is None else f"{value:.4f}" for value in values]
        change = "–   the tokenizers differ" if name == "nats per token" else "–"
        if difference is not None:
            change = fmt.signed(difference.mean) + _interval(difference.interval, signs=True)
        rows.append((name, *cells, change))
    rows.append(("perplexity", *(f"{e.perplexity:.2f}" for e in both), ""))
    rows.append(("tokens", *(f"{e.num_tokens:,}" for e in both), ""))
    other = f"{options.run[0]}, weights in {options.weights}" if options.weights else options.run[1]
    names = (("A", options.run[0]), ("B", other))
    text = ("text", f"{comparison.first.num_bytes:,} bytes; intervals over {comparison.resampled}")
    print("\n".join(fmt.columns([*names, text])))
    print("\n".join(["", *fmt.columns(rows, right=(1, 2))]))
    context = min(run.spec.model.context_length for run in opened)
    print("\n".join(_curves(both, context)), end="")
    return 0


def _curves(results: "Sequence[Evaluation]", context: int) -> list[str]:
    """Return the lines of a table of losses by position; empty without them."""
    curves = [result.by_position for result in results if result.by_position]
    if not curves or len(curves) < len(results):
        return []
    rows = [
        ("position", *("AB"[i] if curves[1:] else "nats per token" for i in range(len(curves))))
    ]
    ranges = [[(bucket.first, bucket.last) for bucket in curve] for curve in curves]
    if ranges[0] != ranges[-1]:
        return []
    for i, (first, last) in enumerate(ranges[0]):
        beyond = "   beyond the context" if first > context else ""
        values = [f"{curve[i].nats_per_token:.4f}" for curve in curves]
        span = f"{first:,}" if first == last else f"{first:,} to {last:,}"
        rows.append((span, *values[:-1], values[-1] + beyond))
    return ["", *fmt.columns([*rows, ("",) * len(rows[0])])]


def _interval(ends: tuple[float, float] | None, *, signs: bool = False) -> str:
    """Return an interval in parentheses; empty if there is none."""
    if ends is None:
        return ""
    low, high = (fmt.signed(end) if signs else f"{end:.4f}" for end in ends)
    return f" ({low} to {high})"


def _rows(
    run: "RunSpec", unit: str, result: "Evaluation", answers: "Answers | None"
) -> list[tuple[str, str]]:
    """Return the names and values of an evaluation."""
    if result.accuracy is not None:
        right = f"{fmt.accuracy(result.accuracy)}   of {result.num_answers:,} answers"
        return [("accuracy", right), ("nats per answer", f"{result.nats_per_token:.4f}")]
    rows = [(unit, f"{result.nats_per_token:.4f}{_interval(result.interval)}")]
    rows.append(("perplexity", f"{result.perplexity:.2f}   (e^{unit})"))
    if result.bits_per_byte is not None:
        interval = _interval(result.bits_per_byte_interval)
        rows.append(("bits per byte", f"{result.bits_per_byte:.4f}{interval}"))
    if result.interval is not None:
        rows.append(("95 % intervals", f"over {result.resampled}"))
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
    if options.run[2:]:
        lines.append(f"{options.run[2]}: found a third run; expected one run, or two to compare")
    if options.run[1:] and not options.text:
        lines.append(
            "--text: found none; expected files, folders, globs or stdlib, to compare two runs"
        )
    if options.weights and (options.run[1:] or options.pairs or options.tasks):
        lines.append("--weights: expected one run, which is read on a text; leave out what is more")
    others = ("text", "pairs", "stride", "length")
    if options.tasks and (
        excluded := [name for name in others if getattr(options, name) is not None]
    ):
        lines.append(f"--{excluded[0]}: has no effect on --tasks; leave it out")
    if options.tasks and options.run[1:]:
        lines.append(f"{options.run[1]}: --tasks evaluate one run at a time")
    for name in ("include_path", "limit"):
        if getattr(options, name) is not None and not options.tasks:
            option = f"--{name.replace('_', '-')}"
            lines.append(f"{option}: a setting of --tasks; add --tasks or leave it out")
    if options.limit is not None and options.limit < 1:
        lines.append(f"--limit: found {options.limit}; expected at least 1")
    if options.pairs and options.text:
        lines.append("--text: given together with --pairs; expected one of them")
    for name in ("stride", "length"):
        if options.pairs and getattr(options, name) is not None:
            lines.append(
                f"--{name}: has no effect on --pairs, which are not cut into windows; leave it out"
            )
    if options.answers and not options.pairs:
        lines.append("--answers: expected --pairs, a file with the sources to answer")
    if options.num_beams is not None and not options.answers:
        lines.append("--num-beams: a setting of --answers; add --answers or leave it out")
    if lines:
        raise UserError(*lines)
