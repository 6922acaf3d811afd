"""Training speed by mask: attention in blocks beside torch's SDPA, and beside the plain formula under a soft-cap.

    python bench/masks.py [--masks causal window] [--no-lengths] [--help]

One Llama-shaped model trains with each mask, in short blocks that take turns. Then the time of a step with a
window is followed over lengths, in one row of tokens and with equal tokens in a step; its slope on log scales
is the exponent. With `--threads 1` the clock is that of the thread's own CPU time, which others disturb
little. The results are printed and written to bench/results/ as Markdown.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

if __name__ == "__main__":  # as a script, its own folder is on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))
from archwright.data.inputs import Batch, Inputs
from archwright.machine.precision import Precision
from archwright.model import build
from archwright.optim import build_optimizers
from archwright.spec.optimizers import AdamW
from archwright.spec.read import load
from archwright.training.step import train_step
from bench import timing

MODEL = {
    "dim": 512,
    "num_layers": 4,
    "attention.num_heads": 8,
    "attention.num_kv_heads": 8,
    "feedforward.hidden_dim": 1408,
    "vocab_size": 4096,
}
CONTEXT, ROWS, DOCUMENT, RATE = 2048, 2, 256, 3e-4
"""Tokens of a row, rows of a batch, tokens of a document in the mean, and the learning rate."""
WINDOW = ("attention.mask.kind=window", "attention.mask.size=256")
LENGTHS = tuple(1024 * 2**i for i in range(5))


@dataclass(frozen=True)
class Case:
    """A mask: what the model says of it, its documents, and the kernel to compare with."""

    changes: tuple[str, ...] = ()
    documents: Callable[[int, int], Tensor] | None = None
    rival: str = "sdpa"


def even_documents(rows: int, length: int) -> Tensor:
    """Return ids of documents that are equally long."""
    return (torch.arange(length) // DOCUMENT).expand(rows, -1)


def uneven_documents(rows: int, length: int) -> Tensor:
    """Return ids of documents that may end after any token, in every row elsewhere."""
    ends = np.random.default_rng(0).random((rows, length)) < 1 / DOCUMENT
    return torch.from_numpy(ends.cumsum(-1))


CASES = {
    "causal": Case(),
    "window 256": Case(WINDOW),
    "ALiBi": Case(("position.kind=alibi",)),
    "documents of 256": Case(documents=even_documents),
    "documents, 256 in the mean": Case(documents=uneven_documents),
    "soft-cap": Case(("attention.softcap=50",), rival="eager"),
}


def trainer(case: Case, kernel: str, length: int, rows: int) -> Callable[[], float]:
    """Return what trains a step, with the settings of `archwright train`, and tells its seconds."""
    changes = [f"{key}={value}" for key, value in MODEL.items()]
    spec = load("modern").override(*changes, f"context_length={length}", *case.changes)
    model = build(spec, seed=0).train().use_kernel(kernel)
    optimizers = build_optimizers(model, AdamW(lr=RATE))
    precision = Precision("bf16", torch.device("cpu"))
    drawn = np.random.default_rng(0).zipf(1.3, (rows, length + 1)) % model.spec.vocab_size
    tokens = torch.from_numpy(drawn)
    documents = None if case.documents is None else case.documents(rows, length)
    batch = Batch(Inputs(tokens[:, :-1], segment_ids=documents), tokens[:, 1:])

    def step() -> float:
        start = timing.clock()
        train_step(model, batch, optimizers, lr_scale=1.0, precision=precision, max_grad_norm=1.0)
        return timing.clock() - start

    step()  # warm
    return step


def by_mask(names: list[str], blocks: int) -> Iterator[str]:
    """Yield a table row for each mask."""
    for name in names:
        case = CASES[name]
        kernels = ("blockwise", case.rival)
        times = timing.take_turns(
            {kernel: trainer(case, kernel, CONTEXT, ROWS) for kernel in kernels}, blocks
        )
        ours, theirs = (times[kernel] for kernel in kernels)
        speeds = (f"{CONTEXT * ROWS / statistics.median(t):,.0f}" for t in (ours, theirs))
        row = f"| {name} | {' | '.join(speeds)} | {case.rival} | {timing.ratio(theirs, ours)} |"
        print(row, file=sys.stderr, flush=True)
        yield row


def by_length(blocks: int) -> Iterator[str]:
    """Yield a table row for each way to fill a batch: milliseconds of a step, and the exponent."""
    for name, whole in [("1 row", False), (f"{LENGTHS[-1]:,} tokens", True)]:
        steps = {
            str(n): trainer(Case(WINDOW), "blockwise", n, LENGTHS[-1] // n if whole else 1)
            for n in LENGTHS
        }
        times = timing.take_turns(steps, blocks)
        found = [statistics.median(times[str(n)]) for n in LENGTHS]
        slopes = [_slope(block) + whole for block in zip(*times.values(), strict=True)]
        low, high = _interval(slopes)
        row = " | ".join(f"{1000 * t:,.0f}" for t in found)
        row = f"| {name} | {row} | {_slope(found) + whole:.3f} ({low:.3f} to {high:.3f}) |"
        print(row, file=sys.stderr, flush=True)
        yield row


def _slope(times: list[float] | tuple[float, ...]) -> float:
    """Return the exponent p of time ~ length^p; with equal tokens in a step it is that less 1."""
    logs = [math.log(n) for n in LENGTHS]
    return statistics.linear_regression(logs, [math.log(t) for t in times]).slope


def _interval(values: list[float]) -> tuple[float, float]:
    """Return the bootstrapped 95 % interval of a median."""
    drawn = np.random.default_rng(0).choice(values, (10_000, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return float(low), float(high)


HEAD = """# Training speed by mask, {date}

{machine}

A Llama-shaped model ({model}), bf16; full steps: forward, loss, backward, clipping, fused AdamW. {blocks} \
interleaved blocks of a step each, {clock}; medians. The ratio is the median over pairs of blocks, with its \
bootstrapped 95 % interval.
"""
MASKS = f"""
## {ROWS} rows of {CONTEXT:,} tokens

| mask | blocks, tokens/s | other, tokens/s | other | blocks are faster |
|---|---:|---:|---|---|
"""
BY_LENGTH = f"""
## Window of 256, milliseconds of a step

The exponent p is that of time per token ~ length^(p - 1), fitted over all lengths.

| a step has | {" | ".join(f"{n:,}" for n in LENGTHS)} | p |
|---|{"---:|" * len(LENGTHS)}---|
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--masks", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--no-lengths", dest="lengths", action="store_false")
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--threads", type=int, default=timing.CORES)
    parser.add_argument("--out", type=Path, default=timing.RESULTS)
    args = parser.parse_args()
    timing.prepare(args.threads)
    text = MASKS + "\n".join(by_mask(args.masks, args.blocks)) + "\n"
    if args.lengths:
        text += BY_LENGTH + "\n".join(by_length(args.blocks)) + "\n"
    head = HEAD.format(
        date=date.today(),
        machine=timing.machine(args.threads),
        model=", ".join(f"{key.split('.')[-1]} {value}" for key, value in MODEL.items()),
        blocks=args.blocks,
        clock="wall time" if args.threads > 1 else "CPU time of the one thread",
    )
    timing.write(head + text, "masks", args.out)


if __name__ == "__main__":
    main()
