"""Do BERT and T5 learn more of hidden tokens than their neighbours tell?

    python bench/masked.py [bert] [t5] [--steps N] [--threads 1] [--runs FOLDER]

A BERT learns to fill in masked tokens, a T5 spans that are left out, each of at most a million parameters, with the
objective as published, on the source of Python's standard library in 2,048 tokens of BPE. They are judged on held-out
windows of text, and beside each stands what it costs to guess the same tokens

- by how often each occurs (a unigram, fitted to the very tokens that are judged, so that none is better),
- by the token on the left alone, and by the one on the right alone: P(token | neighbour) counted in the text that was
  trained on and mixed with its unigram, whatever share of that does best on the tokens judged. The neighbour is the
  true one, also where the model sees a mask there.

Time is processor time of the training, of all threads together; 15 minutes on two cores are 1,800 seconds. The table is
written to bench/results/ as Markdown.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

if __name__ == "__main__":  # as a script, its own folder is on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))
from archwright.data.inputs import IGNORE, Batch
from archwright.hf.families.t5 import T5
from archwright.runs.load import OpenRun
from archwright.spec.read import load_run
from archwright.spec.run_spec import RunSpec
from archwright.training.data import reload_data
from archwright.training.evaluation import held_out_windows
from archwright.training.step import to_device
from archwright.training.train import train
from bench import timing

Ids = NDArray[np.int64]

STEPS = {"bert": 20_000, "t5": 12_500}
JUDGED_TOKENS = 200_000
"""Held-out tokens of text, of which the objective hides some."""
COMMON = (
    *("data.tokenizer.vocab_size=2048", "optimizer.kind=muon", "schedule.kind=linear"),
    *("evaluate.max_tokens=50000", "evaluate.final_max_tokens=100000", "machine.compile=none"),
)
BERT = (
    *("model.dim=96", "model.num_layers=3", "model.vocab_size=auto", "model.context_length=64"),
    *("model.attention.num_heads=4", "model.feedforward.hidden_dim=384"),
    # Each text is read once or twice, so that nothing is learnt by heart.
    *("model.residual.dropout=0", "model.attention.dropout=0", "model.embedding.dropout=0"),
    *("batch_size=16", "optimizer.lr=3e-3", "optimizer.adamw_lr=3e-3"),
)
T5_CONFIG = {
    "d_model": 112,
    "d_kv": 28,
    "num_heads": 4,
    "d_ff": 448,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "dropout_rate": 0.0,
}
T5_SIZES = ("vocab_size=auto", "encoder.vocab_size=auto", "context_length=64")
T5_TRAINING = (
    *("objective.kind=span_corruption", "model.encoder.context_length=auto"),
    *("model.init.embedding_std=1.0", "batch_size=32", "optimizer.lr=5e-3"),
    "optimizer.adamw_lr=5e-3",
)


class Predicted(NamedTuple):
    """Hidden tokens, what a model's prediction of each costs, and what stands beside them in the text."""

    tokens: Ids
    nats: NDArray[np.float64]
    left: Ids
    right: Ids
    """Neighbours; -1 where there is none, or the token is none of the text."""

    def of_text(self) -> "Predicted":
        """Return those that stand between two tokens of the text."""
        inside = (self.left >= 0) & (self.right >= 0)
        return Predicted(*(array[inside] for array in self))


def main() -> None:
    args = _arguments()
    rows, said = [], []
    with tempfile.TemporaryDirectory(prefix="archwright-bench-") as folder:
        for name in args.models:
            before = _processor_seconds()
            run = train(spec(name, args), out=(args.runs or Path(folder)) / name)
            seconds = _processor_seconds() - before
            steps = args.steps or STEPS[name]
            said.append(
                f"{name}: {run.model.num_parameters():,} parameters, {steps:,} steps of {run.spec.batch_size} "
                f"windows of {run.spec.model.context_length} tokens, {seconds:,.0f} seconds of processor time."
            )
            rows += [f"| {name} | {row}" for row in judged(run)]
            print(said[-1], *rows, sep="\n", flush=True)
    head = [
        "| model | predicted | number | model | unigram | left neighbour | right neighbour |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    text = [*(f"{line}\n" for line in said), timing.machine(args.threads), ""]
    page = [
        "# Hidden tokens",
        "",
        *text,
        "Nats per predicted token, held out.",
        "",
        *head,
        *rows,
        "",
    ]
    timing.write("\n".join(page), "masked", args.out)


def spec(name: str, args: argparse.Namespace) -> RunSpec:
    """Return what is trained."""
    own = (
        f"budget={args.steps or STEPS[name]}steps",
        f"machine.threads={args.threads}",
        f"seed={args.seed}",
    )
    if name == "bert":
        return load_run("bert-base").override(*COMMON, *BERT, *own)
    model = T5.spec(T5_CONFIG).override(*T5_SIZES)
    return RunSpec(name=name, model=model).override(*COMMON, *T5_TRAINING, *own)


def judged(run: OpenRun) -> Iterator[str]:
    """Yield rows of the table: of all that is predicted, and of the tokens of the text among it."""
    material = reload_data(run.spec, run.folder)
    found = predicted(run, material.held_out)
    text = np.asarray(material.train[:], np.int64)
    yield _row("all", found, float(np.mean(found.nats)), "", "")
    inside = found.of_text()
    sides = (
        neighbour(text[:-1], text[1:], inside.left, inside.tokens),
        neighbour(text[1:], text[:-1], inside.right, inside.tokens),
    )
    yield _row(
        "tokens of the text", inside, float(np.mean(inside.nats)), *(f"{x:.3f}" for x in sides)
    )


def _row(what: str, found: Predicted, model: float, left: str, right: str) -> str:
    return f"{what} | {len(found.tokens):,} | {model:.3f} | {unigram(found.tokens):.3f} | {left} | {right} |"


def unigram(tokens: Ids) -> float:
    """Return nats per token by the frequencies of these very tokens: their entropy."""
    p = np.bincount(tokens) / len(tokens)
    return float(-np.mean(np.log(p[tokens])))


def neighbour(given: Ids, follows: Ids, beside: Ids, tokens: Ids) -> float:
    """Return nats per token by counts of which token stands beside which, mixed with as many of the unigram as do best.

    Shapes: given and follows [text], beside and tokens [judged].
    """
    size = 1 + max(int(array.max()) for array in (given, follows, beside, tokens))
    counts = np.bincount(given * size + follows, minlength=size * size).reshape(size, size)
    share = (np.bincount(follows, minlength=size) + 1.0) / (len(follows) + size)
    pair, alone = counts[beside, tokens], share[tokens]
    total = counts.sum(1)[beside]
    mixed = ((pair + k * alone) / (total + k) for k in (1, 3, 10, 30, 100, 300, 1000))
    return min(float(-np.mean(np.log(p))) for p in mixed)


@torch.inference_mode()
def predicted(run: OpenRun, text: object) -> Predicted:
    """Return what a model predicts of held-out text."""
    windows = held_out_windows(
        text,  # type: ignore[arg-type]
        run.tokenizer,
        run.spec.objective,
        run.spec.model.context_length,
        max_tokens=JUDGED_TOKENS,
    )
    found = []
    for arrays in windows:
        batch = to_device(arrays, torch.device("cpu"))
        logits = run.model(**batch.inputs.given()).logits  # [batch, length, vocab]
        nats = F.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE, reduction="none"
        ).view(batch.targets.shape)
        sentinels = {run.tokenizer.special_ids[name] for name in run.spec.objective.special_tokens}
        beside = spans if run.spec.objective.has_source else masks
        found.append(beside(arrays, nats.double().numpy(), sentinels))
    return Predicted(*(np.concatenate(arrays) for arrays in zip(*found, strict=True)))


def masks(batch: Batch, nats: NDArray[np.float64], special: set[int]) -> Predicted:
    """Return masked tokens with their neighbours, of which those behind the ends of a window are none."""
    hidden = batch.targets != IGNORE
    text = np.where(hidden, batch.targets, batch.inputs.tokens)
    if batch.inputs.padding_mask is not None:
        text = np.where(batch.inputs.padding_mask, text, -1)
    left, right = np.full_like(text, -1), np.full_like(text, -1)
    left[:, 1:], right[:, :-1] = text[:, :-1], text[:, 1:]
    return Predicted(*(array[hidden] for array in (text, nats, left, right)))


def spans(batch: Batch, nats: NDArray[np.float64], special: set[int]) -> Predicted:
    """Return the tokens of targets; of those of the text, with the neighbours that they had in it."""
    found: list[tuple[int, float, int, int]] = []
    for row in range(len(batch.targets)):
        source = batch.inputs.tokens[row]
        if batch.inputs.padding_mask is not None:
            source = source[batch.inputs.padding_mask[row]]
        target = batch.targets[row][batch.targets[row] != IGNORE].tolist()
        cuts = [i for i, token in enumerate(target) if token in special]
        # Each sentinel, and behind it the places of what it stands for; the last token ends the target.
        places = {
            target[a]: range(a + 1, b)
            for a, b in zip(cuts, [*cuts[1:], len(target) - 1], strict=True)
        }
        text: list[tuple[int, int]] = []  # token, and its place in the target
        for token in source[:-1].tolist():
            text += [(target[i], i) for i in places[token]] if token in places else [(token, -1)]
        around = {
            i: (text[n - 1][0] if n else -1, text[n + 1][0] if n + 1 < len(text) else -1)
            for n, (_, i) in enumerate(text)
        }
        found += [
            (token, float(nats[row, i]), *around.get(i, (-1, -1))) for i, token in enumerate(target)
        ]
    tokens, costs, left, right = zip(*found, strict=True)
    return Predicted(np.array(tokens), np.array(costs), np.array(left), np.array(right))


def _processor_seconds() -> float:
    """Return the processor time of this process and of those that it waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=["bert", "t5"], help="(default: both)")
    parser.add_argument("--steps", type=int, help=f"of each model (default: {STEPS})")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, help="a folder to keep the runs in")
    parser.add_argument("--out", type=Path, default=timing.RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
