"""Training speed of archwright beside its peers: one shape, the same precision, allocator and optimizer.

    python bench/train_speed.py [--shapes 3.4M 29.9M] [--compile] [--contenders archwright litgpt] [--help]

All train in one process, in short blocks that take turns, so that whatever else the machine does falls on all
alike. Memory, and the time from an empty process to its first step, are measured in a process for each. With
`--threads 1` the clock is that of the thread's own CPU time, which other programs disturb little.
The results are printed and written to bench/results/ as Markdown.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import Tensor

if __name__ == "__main__":  # as a script, its own folder is on the path
    from contenders import DTYPES, MODELS, SHAPES, Shape, Step, contender
else:
    from bench.contenders import DTYPES, MODELS, SHAPES, Shape, Step, contender

ROTATING = 8
"""Different batches that a contender trains on in turn."""
CLOCKS = {True: "CPU time of the one thread", False: "wall time"}
PACKAGES = ("torch", "transformers", "litgpt", "x-transformers")


@dataclass
class Contender:
    """A model in training, and the seconds per step of each of its blocks."""

    name: str
    step: Step
    times: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Alone:
    """What a contender needs in a process of its own."""

    first_step: float
    """Seconds from an empty process to the end of the first step."""
    memory: int
    """Most bytes that were resident in four steps."""


def main() -> None:
    args = _arguments()
    if args.solo:
        _solo(args)
        return
    tuned = _prepare(args)
    results = [_measure(name, args.precision, args) for name in args.shapes]
    text = _page(results, args, tuned)
    print(text)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        path = args.out / f"{date.today()}-train-speed.md"
        path.write_text(text, encoding="utf-8")
        print(f"written to {path}")


def _prepare(args: argparse.Namespace) -> bool:
    """Give the process the settings that all contenders share; tell whether the allocator took its own."""
    from archwright.training.allocator import tune_allocator
    from archwright.training.products import fastest_float32

    tuned = args.allocator == "tuned" and tune_allocator()
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision(fastest_float32()[0])
    return tuned


def _solo(args: argparse.Namespace) -> None:
    """Train four steps of one contender, and print what it took."""
    if args.allocator == "tuned":
        from archwright.training.allocator import tune_allocator

        tune_allocator()
    torch.set_num_threads(args.threads)
    shape = SHAPES[args.shapes[0]]
    step = contender(args.solo, shape, args.precision)
    batches = _batches(shape)
    step(*next(batches))
    seconds = time.time() - args.begun
    for _ in range(3):
        step(*next(batches))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"first_step": seconds, "memory": memory}))


def _alone(name: str, shape: str, args: argparse.Namespace) -> Alone:
    """Measure a contender in a process of its own."""
    words = ["--solo", name, "--shapes", shape, "--precision", args.precision]
    words += ["--allocator", args.allocator, "--threads", str(args.threads)]
    done = subprocess.run(
        [sys.executable, __file__, *words, "--begun", str(time.time())],
        capture_output=True,
        text=True,
        check=True,
    )
    return Alone(**json.loads(done.stdout.splitlines()[-1]))


def _measure(name: str, precision: str, args: argparse.Namespace) -> "Result":
    """Train all contenders on one shape, block by block."""
    shape = SHAPES[name]
    names = list(args.contenders)
    names += [f"{n}, compiled" for n in args.contenders] if args.compile else []
    alone = {n: _alone(n, name, args) for n in names if args.alone and "compiled" not in n}
    batches = list(_batches(shape))
    peaks = [_peak(precision)]
    contenders = [Contender(n, contender(n, shape, precision)) for n in names]
    steps = _steps_per_block(contenders, batches, args.seconds)
    for block in range(args.blocks):
        for each in contenders if block % 2 == 0 else reversed(contenders):
            each.times.append(_block(each, batches, steps))
    peaks.append(_peak(precision))
    result = Result(name, precision, shape, _size(shape), max(peaks), contenders, alone)
    print(*result.rows(), sep="\n", flush=True)
    return result


@dataclass
class Result:
    """What one shape gave."""

    name: str
    precision: str
    shape: Shape
    num_parameters: int
    peak: float
    contenders: list[Contender]
    alone: dict[str, Alone]

    def rows(self) -> Iterator[str]:
        """Yield a table row for each contender, and one for the best of each side."""
        s = self.shape
        flops = 6 * self.num_parameters + 6 * s.num_layers * s.dim * s.length
        own = [c for c in self.contenders if c.name.startswith("archwright")]
        best = min(own, key=lambda c: statistics.median(c.times))
        for each in self.contenders:
            speed = s.tokens / statistics.median(each.times)
            compared = "" if each in own else _ratio(each.times, best.times)
            alone = self.alone.get(each.name)
            yield (
                f"| {self.name} | {each.name} | {speed:,.0f} | {compared} "
                f"| {100 * flops * speed / self.peak:.0f} % "
                f"| {f'{alone.memory / 1e6:,.0f} MB' if alone else ''} "
                f"| {f'{alone.first_step:.1f} s' if alone else ''} |"
            )


def _size(shape: Shape) -> int:
    """Return the number of parameters, a tied table counted once."""
    kv = shape.num_kv_heads * shape.head_dim
    layer = 2 * shape.dim * (shape.dim + kv) + 3 * shape.dim * shape.hidden_dim + 2 * shape.dim
    return shape.vocab_size * shape.dim + shape.num_layers * layer + shape.dim


def _batches(shape: Shape) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of tokens that are as unequal in frequency as words are."""
    generator = np.random.default_rng(0)
    size = (shape.batch_size, shape.length + 1)
    for _ in range(ROTATING):
        drawn = torch.from_numpy(generator.zipf(1.3, size) % shape.vocab_size)
        yield drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def _steps_per_block(
    contenders: list[Contender], batches: list[tuple[Tensor, Tensor]], seconds: float
) -> int:
    """Warm all contenders up, and return how many steps of the fastest fit in `seconds`."""
    for each in contenders:
        _block(each, batches, 2)
    return max(1, round(seconds / min(_block(c, batches, 1) for c in contenders)))


def _block(each: Contender, batches: list[tuple[Tensor, Tensor]], steps: int) -> float:
    """Return the seconds per step of one block."""
    start = _clock()
    for i in range(steps):
        each.step(*batches[i % len(batches)])
    return (_clock() - start) / steps


def _ratio(theirs: list[float], ours: list[float]) -> str:
    """Return how much faster ours is: the median over pairs of blocks, with its bootstrap interval."""
    ratios = np.array(theirs) / np.array(ours)
    drawn = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return f"{np.median(ratios):.2f} ({low:.2f} to {high:.2f})"


def _peak(precision: str) -> float:
    """Return the best FLOP/s of a matrix product within a second."""
    a, b = (torch.randn(1024, 1024).to(DTYPES[precision]) for _ in range(2))
    times: list[float] = []
    while sum(times) < 1.0:
        start = _clock()
        a @ b
        times.append(_clock() - start)
    return 2 * 1024**3 / min(times)


def _clock() -> float:
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


HEAD = """# Training speed, {date}

{cpu}, {threads} threads, {memory:.0f} GiB; Python {python}, {packages}; allocator {allocator} for all; load at \
the end {load:.1f}.

{blocks} interleaved blocks of about {seconds:g} s, {clock}; medians, {precision}. Full steps: forward, loss, \
backward, clipping, fused AdamW. "Ours is faster" is the median ratio of neighbouring blocks to our fastest, with \
its bootstrapped 95 % interval. FLOPs per token are 6 N + 6 L d T, a tied table counted once; measured peaks: \
{peaks}. Memory and the first step are those of a process of its own, imports included.

| model | trainer | tokens/s | ours is faster | of peak | most memory | first step |
|---|---|---:|---|---:|---:|---:|
"""


def _page(results: list[Result], args: argparse.Namespace, tuned: bool) -> str:
    from archwright.training.machine import _cpu_name

    head = HEAD.format(
        date=date.today(),
        cpu=_cpu_name(),
        threads=args.threads,
        memory=psutil.virtual_memory().total / 2**30,
        python=platform.python_version(),
        packages=", ".join(f"{name} {found}" for name in PACKAGES if (found := _version(name))),
        allocator="tuned" if tuned else "as the system has it",
        load=os.getloadavg()[0],
        blocks=args.blocks,
        seconds=args.seconds,
        precision=args.precision,
        clock=CLOCKS[args.threads == 1],
        peaks=", ".join(f"{r.name} {r.peak / 1e9:.0f} GFLOP/s" for r in results),
    )
    return head + "\n".join(row for result in results for row in result.rows()) + "\n"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _arguments() -> argparse.Namespace:
    names = ["archwright", *MODELS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["3.4M", "29.9M"])
    parser.add_argument("--contenders", nargs="+", choices=names, default=names)
    parser.add_argument("--precision", choices=DTYPES, default="bf16")
    parser.add_argument("--compile", action="store_true", help="add all of them compiled")
    parser.add_argument("--allocator", choices=["tuned", "default"], default="tuned")
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one block")
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--no-alone", dest="alone", action="store_false", help="leave memory out")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--solo", help=argparse.SUPPRESS)
    parser.add_argument("--begun", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
