"""Does a small Transformer of 2017 learn to translate, and does it read its source?

    python bench/translation.py [--steps 1000] [--threads 1] [--run FOLDER] [ASSIGNMENTS ...]

It learns the synthetic pair of languages (`data.pairs=synthetic`) and is asked for sentences that it never saw: 2,000
of the lengths that it was trained on, and 500 that are longer than any of those. BLEU is sacrebleu's, of the likeliest
token at each place. As a control each of the 2,000 is translated again from the source of another sentence: what BLEU
is left comes from the target language alone.

Time is processor time of the training, of all threads together, which other work on the machine disturbs little;
15 minutes on two cores are 1,800 seconds. Needs sacrebleu; the table is written to bench/results/ as Markdown.
"""

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":  # as a script, its own folder is on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))
from archwright.generation import generate
from archwright.runs.load import OpenRun
from archwright.spec.read import load_run
from archwright.spec.run_spec import RunSpec
from archwright.text.pairs import Pair, SyntheticPairs
from archwright.training.evaluation import bleu, evaluate_pairs
from archwright.training.train import train
from bench import timing

NUM_HELD_OUT, NUM_LONGER = 2000, 500
LAYER = {
    "norm.kind": "layer",
    "norm.eps": "1e-5",
    "residual.kind": "post",
    "position.kind": "sinusoidal",
    "attention.num_heads": "4",
    "attention.bias": "true",
    "feedforward.kind": "relu",
    "feedforward.bias": "true",
}
"""Of both stacks (Vaswani et al., 2017), scaled down."""
MODEL = (
    *("model.dim=128", "model.num_layers=2", "model.context_length=48"),
    *(f"model.{key}={value}" for key, value in LAYER.items()),
    *("model.encoder.kind=stack", "model.encoder.num_layers=2"),
    *(f"model.encoder.{key}={value}" for key, value in LAYER.items()),
    *("model.cross_attention.kind=softmax", "model.cross_attention.num_heads=4"),
    "model.cross_attention.bias=true",
)
TRAINING = (
    *("data.pairs=synthetic", "data.tokenizer.vocab_size=1024", "batch_size=64"),
    *("optimizer.kind=adamw", "optimizer.lr=1e-3", "optimizer.betas=[0.9, 0.98]"),
    *("optimizer.weight_decay=0", "label_smoothing=0.1", "schedule.kind=linear"),
)
"""Warm-up and a linear end in place of the inverse square root, which wants more steps than there are."""


def main() -> None:
    args = _arguments()
    with tempfile.TemporaryDirectory(prefix="archwright-bench-") as folder:
        run = spec(args)
        before = _processor_seconds()
        trained = train(run, out=args.run or Path(folder) / "run")
        seconds = _processor_seconds() - before
        rows = [*judged(trained)]
    timing.write(page(args, trained, seconds, rows), "translation", args.out)


def spec(args: argparse.Namespace) -> RunSpec:
    """Return what is trained."""
    own = (
        *(f"budget={args.steps}steps", f"seed={args.seed}"),
        *(f"machine.threads={args.threads}", "machine.compile=none"),  # which takes minutes itself
    )
    return load_run("textbook").override(*MODEL, *TRAINING, *own, *args.assignments)


def judged(run: OpenRun) -> Iterator[tuple[str, int, float, float]]:
    """Yield what is translated, how many sentences that are, their BLEU, and the share of them that are exact."""
    held_out, longer = (
        [SyntheticPairs(side).pair(0, i) for i in range(number)]
        for side, number in (("held_out", NUM_HELD_OUT), ("longer", NUM_LONGER))
    )
    yield "held out, 5 to 15 words", *scored(run, held_out, held_out)
    yield "longer, 16 to 21 words", *scored(run, longer, longer)
    others = list(held_out)
    random.Random(0).shuffle(others)
    yield "held out, from the source of another sentence", *scored(run, others, held_out)


def scored(run: OpenRun, asked: list[Pair], expected: list[Pair]) -> tuple[int, float, float]:
    """Return how many sentences are translated, BLEU against the targets of others or the same, and the share that is
    exact."""
    answers = [*map(str, generate(run, source=[pair.source for pair in asked], max_new_tokens=64))]
    targets = [pair.target for pair in expected]
    found = bleu(answers, targets)
    assert found is not None, "sacrebleu is not installed: pip install sacrebleu"
    exact = sum(a == b for a, b in zip(answers, targets, strict=True)) / len(targets)
    return len(targets), found, exact


def page(
    args: argparse.Namespace,
    run: OpenRun,
    seconds: float,
    rows: list[tuple[str, int, float, float]],
) -> str:
    """Return the results as Markdown."""
    nats = evaluate_pairs(run, "synthetic").nats_per_token
    said = (
        f"{run.model.num_parameters():,} parameters, {args.steps:,} steps of {run.spec.batch_size} pairs, "
        f"{seconds:,.0f} seconds of processor time, {nats:.4f} nats per predicted token held out. "
        f"{timing.machine(args.threads)}"
    )
    head = ["| sentences | number | BLEU | exact |", "|---|--:|--:|--:|"]
    table = [f"| {what} | {n:,} | {score:.2f} | {exact:.1%} |" for what, n, score, exact in rows]
    return "\n".join(
        ["# A Transformer of 2017 learns to translate", "", said, "", *head, *table, ""]
    )


def _processor_seconds() -> float:
    """Return the processor time of this process and of those that it waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("assignments", nargs="*", help="dotted values of the run")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=Path, help="a folder to keep the run in")
    parser.add_argument("--out", type=Path, default=timing.RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
