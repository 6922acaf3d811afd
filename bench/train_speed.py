"""Training speed of archwright beside its peers: one shape, the same precision, allocator and optimizer.

    python bench/train_speed.py [--shapes 3.4M 29.9M] [--contenders archwright litgpt] [--help]

All train in one process, in short blocks that take turns, so that whatever else the machine does falls on all
alike. Each is tried compiled and not; the faster way goes on, always right beside a block of ours. Memory, and
the time from an empty process to its first step, are measured in a process for each. With `--threads 1` the
clock is that of the thread's own CPU time, which other programs disturb little. The
results are printed and written to bench/results/ as Markdown.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

if __name__ == "__main__":  # as a script, its own folder is on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))
from archwright.cpu import prepare_process
from bench import timing
from bench.contenders import DTYPES, MODELS, SHAPES, Shape, Step, contender

TRIED = 3
"""Blocks in which each peer is tried compiled and not; we are for three times as many."""
ROTATING = 8
"""Different batches that a contender trains on in turn."""
CLOCKS = {True: "CPU time of the one thread", False: "wall time"}
OURS = "archwright"
AS_IT_COMES = "transformers, float32"
"""A peer with torch's defaults: no autocast, products as torch has them."""


@dataclass(frozen=True)
class Alone:
    """What a contender needs in a process of its own."""

    first_step: float
    """Seconds from an empty process to the end of the first step."""
    memory: int
    """Most bytes that were resident in four steps."""


@dataclass(frozen=True)
class Result:
    """What one shape gave."""

    name: str
    shape: Shape
    own: str
    """The faster of ours, that all others stood beside."""
    own_times: list[float]
    """Seconds per step of its blocks."""
    pairs: dict[str, list[tuple[float, float]]]
    """Seconds per step of each block and of the block of ours beside it, by contender."""
    rates: list[float]
    """FLOP/s of square matrix products, in each block."""
    alone: dict[str, Alone]

    def rows(self) -> Iterator[str]:
        """Yield a table row for each contender."""
        s = self.shape
        flops = 6 * _size(s) + 6 * s.num_layers * s.dim * s.length
        peak = max(self.rates)
        yield self._row(self.own, self.own_times, "", flops / peak)
        for name, pairs in self.pairs.items():
            theirs, ours = zip(*pairs, strict=True)
            yield self._row(name, theirs, timing.ratio(theirs, ours), flops / peak)

    def _row(self, name: str, times: Sequence[float], compared: str, per_rate: float) -> str:
        speed = self.shape.tokens / statistics.median(times)
        alone = self.alone.get(name)
        return (
            f"| {self.name} | {name} | {len(times)} | {speed:,.0f} | {compared} "
            f"| {100 * per_rate * speed:.0f} % "
            f"| {f'{alone.memory / 1e6:,.0f} MB' if alone else ''} "
            f"| {f'{alone.first_step:.1f} s' if alone else ''} |"
        )


def main() -> None:
    args = _arguments()
    if args.solo:
        _solo(args)
        return
    tuned = timing.prepare(args.threads, tuned=args.allocator == "tuned")
    started, results = time.monotonic(), []
    for i, name in enumerate(args.shapes, 1):
        until = started + 60 * args.minutes * i / len(args.shapes)
        results.append(_measure(name, args, until))
    timing.write(_page(results, args, tuned), "train-speed", args.out)


def _solo(args: argparse.Namespace) -> None:
    """Train four steps of one contender, and print what it took."""
    if args.allocator == "tuned":
        prepare_process()
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision(args.float32)
    shape = SHAPES[args.shapes[0]]
    step = contender(args.solo, shape, args.precision)
    batches = _batches(shape)
    step(*next(batches))
    seconds = time.time() - args.started
    for _ in range(3):
        step(*next(batches))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"first_step": seconds, "memory": memory}))


def _alone(name: str, shape: str, args: argparse.Namespace) -> Alone:
    """Measure a contender in a process of its own."""
    words = ["--solo", name, "--shapes", shape, "--precision", args.precision]
    words += ["--allocator", args.allocator, "--threads", str(args.threads)]
    words += ["--float32", torch.get_float32_matmul_precision()]  # compilers ask for all settings
    done = subprocess.run(
        [sys.executable, __file__, *words, "--started", str(time.time())],
        capture_output=True,
        text=True,
        check=True,
    )
    return Alone(**json.loads(done.stdout.splitlines()[-1]))


def _measure(name: str, args: argparse.Namespace, until: float) -> Result:
    """Train all contenders on one shape, block by block."""
    shape = SHAPES[name]
    alone = {n: _alone(n, name, args) for n in args.contenders if args.alone}
    batches = list(_batches(shape))
    steps = {n: contender(n, shape, args.precision) for n in args.contenders}
    if args.compile:
        torch.compiler.reset()  # or it would compile for shapes that vary, after the first
        compiled = [f"{n}, compiled" for n in args.contenders]
        with ThreadPoolExecutor(timing.CORES) as pool:  # fills the compiler's cache, side by side
            list(pool.map(lambda n: _alone(n, name, args), compiled))
        steps |= {n: contender(n, shape, args.precision) for n in compiled}
    if args.contenders == [*_NAMES] and args.precision != "fp32":
        steps[AS_IT_COMES] = _as_it_comes(contender("transformers", shape, "fp32"))
    per_block = _steps_per_block(steps, batches, args.seconds)
    blocks = {n: _block_of(step, batches, per_block) for n, step in steps.items()}
    ways = [n for n in blocks if n.startswith(OURS)]
    tried = timing.take_turns({n: blocks[n] for n in ways}, 3 * TRIED)
    own = min(ways, key=lambda n: statistics.median(np.divide(tried[n], tried[ways[0]])))
    pairs = {n: list(zip(tried[n], tried[own], strict=True)) for n in ways if n != own}
    rates: list[float] = []
    own_times: list[float] = []

    def ours() -> float:
        rates.append(timing.product_rate(DTYPES[args.precision]))
        own_times.append(blocks[own]())
        return own_times[-1]

    def go_on(names: Iterable[str], number: int) -> None:
        others = {n: blocks[n] for n in names}
        for n, more in timing.take_turns_beside(ours, others, number, until).items():
            pairs[n] = [*pairs.get(n, []), *more]

    rivals = [n for n in blocks if n not in (*ways, AS_IT_COMES)]
    go_on(rivals, TRIED)
    slower = {n: statistics.median(theirs / beside for theirs, beside in pairs[n]) for n in rivals}
    fastest = [n for n in rivals if slower[n] <= slower.get(_other_way(n), slower[n])]
    go_on(fastest, args.blocks - TRIED)
    go_on([AS_IT_COMES] if AS_IT_COMES in blocks else [], args.blocks // 3)
    result = Result(name, shape, own, own_times, pairs, rates, alone)
    print(*result.rows(), sep="\n", flush=True)
    return result


def _other_way(name: str) -> str:
    """Return the same trainer compiled, or not compiled."""
    plain, compiled, _ = name.partition(", compiled")
    return plain if compiled else f"{plain}, compiled"


def _as_it_comes(step: Step) -> Step:
    """Return a step that uses torch's default for float32 products."""

    def run(tokens: Tensor, targets: Tensor) -> float:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        loss = step(tokens, targets)
        torch.set_float32_matmul_precision(before)
        return loss

    return run


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
    steps: dict[str, Step], batches: list[tuple[Tensor, Tensor]], seconds: float
) -> int:
    """Warm all contenders up, and return how many steps of the fastest fit in `seconds`."""
    for name, step in steps.items():
        start = time.perf_counter()
        _block_of(step, batches, 2)()
        print(f"{name}: warm after {time.perf_counter() - start:.1f} s", file=sys.stderr)
    fastest = min(_block_of(step, batches, 1)() for step in steps.values())
    return max(1, round(seconds / fastest))


def _block_of(step: Step, batches: list[tuple[Tensor, Tensor]], number: int) -> Callable[[], float]:
    """Return what trains a block of so many steps, and tells the seconds of one."""

    def block() -> float:
        start = timing.clock()
        for i in range(number):
            step(*batches[i % len(batches)])
        return (timing.clock() - start) / number

    return block


HEAD = """# Training speed, {date}

{machine}

Interleaved blocks of about {seconds:g} s, {clock}; medians, {precision}, allocator {allocator} for all. Full \
steps: forward, loss, backward, clipping, fused AdamW; peers are compiled with their loss, archwright layer by \
layer. Each peer was tried for {tried} blocks compiled and not, and went on the faster way; we, for three \
times as many. "Ours is faster" is the median ratio of blocks to the block of our fastest right beside them, with its \
bootstrapped 95 % interval; of {tried} blocks it says little. FLOPs per token are 6 N + 6 L d T, a tied table \
counted once; they are compared with the rate of products of 1024 x 1024 matrices, measured for 0.1 s beside \
each block of ours, at its best: {peaks}. Memory and the first step are those of a \
process of its own, imports included, uncompiled.

| model | trainer | blocks | tokens/s | ours is faster | of peak | most memory | first step |
|---|---|---:|---:|---|---:|---:|---:|
"""


def _page(results: list[Result], args: argparse.Namespace, tuned: bool) -> str:
    head = HEAD.format(
        date=date.today(),
        machine=timing.machine(args.threads),
        allocator="tuned" if tuned else "as the system has it",
        tried=TRIED,
        seconds=args.seconds,
        precision=args.precision,
        clock=CLOCKS[args.threads == 1],
        peaks=", ".join(
            f"{r.name} {max(r.rates) / 1e9:.0f} GFLOP/s (median {statistics.median(r.rates) / 1e9:.0f})"
            for r in results
        ),
    )
    return head + "\n".join(row for result in results for row in result.rows()) + "\n"


_NAMES = ("archwright", *MODELS)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["3.4M", "29.9M"])
    parser.add_argument("--contenders", nargs="+", choices=_NAMES, default=[*_NAMES])
    parser.add_argument("--precision", choices=DTYPES, default="bf16")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--allocator", choices=["tuned", "default"], default="tuned")
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument(
        "--minutes",
        type=float,
        default=11.5,
        help="after which each has its first three blocks only",
    )
    parser.add_argument("--seconds", type=float, default=0.7, help="of one block")
    parser.add_argument("--threads", type=int, default=timing.CORES)
    parser.add_argument("--no-alone", dest="alone", action="store_false", help="leave memory out")
    parser.add_argument("--out", type=Path, default=timing.RESULTS)
    parser.add_argument("--solo", help=argparse.SUPPRESS)
    parser.add_argument("--float32", help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
