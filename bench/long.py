"""Time against length: how the cost of a layer that mixes tokens grows with the text.

    python bench/long.py [--mixers longformer window] [--longest 32768] [--blocks 5] [--help]

One layer without a feed-forward reads a text of each length, forward, and forward and backward, on one thread, by
turns; times are those of the thread's own CPU time. The exponent p of time ~ length^p is fitted on log scales, over all
lengths, to the least time of each, which others on the machine disturb least. The result is printed and written to
bench/results/ as Markdown.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import torch

if __name__ == "__main__":  # as a script, its own folder is on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))
from archwright.model import build_layer
from archwright.spec.read import load
from bench import timing

MODEL = ("dim=32", "attention.num_heads=2", "attention.num_kv_heads=2", "feedforward.kind=none")
SHORTEST, RADIUS = 2048, 64
"""Tokens of the shortest text, and how far windows reach on either side."""
HASHES = (
    "attention.kind=lsh",
    "attention.num_heads=2",
    f"attention.chunk_size={RADIUS}",
    "position.kind=none",
)
MIXERS: dict[str, tuple[str, ...]] = {
    "full": ("attention.mask.kind=full",),
    "causal window": ("attention.mask.kind=window", f"attention.mask.size={2 * RADIUS + 1}"),
    "window and first keys": (
        "attention.mask.kind=window_global",
        f"attention.mask.size={2 * RADIUS + 1}",
    ),
    "longformer": (
        "attention.kind=longformer",
        "attention.mask.kind=longformer",
        "attention.num_heads=2",
        f"attention.mask.radius={RADIUS}",
        "attention.mask.num_global=1",
    ),
    "chunks": (
        "attention.mask.kind=chunked",
        f"attention.mask.size={RADIUS}",
        "attention.mask.chunks_before=1",
    ),
    "lsh": HASHES,
    "lsh, four hashes": (*HASHES, "attention.num_hashes=4"),
    "big_bird": ("attention.mask.kind=big_bird", f"attention.mask.block_size={RADIUS}"),
}
"""What the layer of each has otherwise than that of `modern`."""
QUADRATIC, LIMIT = {"full"}, 8192
"""Mixers for comparison, which are measured up to this length."""


def lengths(name: str, longest: int) -> list[int]:
    """Return the lengths at which a mixer is measured."""
    most = min(longest, LIMIT) if name in QUADRATIC else longest
    return [SHORTEST * 2**i for i in range(1 + int(math.log2(most / SHORTEST)))]


def reader(name: str, length: int, backward: bool) -> Callable[[], float]:
    """Return what reads a text of a length once, and tells its seconds."""
    changes = MIXERS[name]
    own_heads = any(change.startswith("attention.kind=") for change in changes)
    base = [change for change in MODEL if not (own_heads and "attention" in change)]
    spec = load("modern").override(*base, *changes, f"context_length={length}")
    layer = build_layer(spec).train(backward)
    for mixer in layer.mixers().values():
        mixer.use_kernel("blockwise")
    x = torch.randn(1, length, 32, requires_grad=backward)

    def read() -> float:
        start = timing.clock()
        with torch.set_grad_enabled(backward):
            out = layer(x)
        if backward:
            out.sum().backward()
        return timing.clock() - start

    read()  # warm
    return read


def rows(names: list[str], longest: int, blocks: int) -> Iterator[str]:
    """Yield a table row for each mixer and pass: milliseconds at each length, and the exponent."""
    columns = lengths("", longest)
    for name in names:
        for backward in (False, True):
            own = lengths(name, longest)
            times = timing.take_turns({str(n): reader(name, n, backward) for n in own}, blocks)
            least = [min(times[str(n)]) for n in own]
            shown = [f"{1000 * t:,.1f}" for t in least] + [""] * (len(columns) - len(own))
            what = "forward and backward" if backward else "forward"
            row = f"| {name} | {what} | {' | '.join(shown)} | {exponent(own, least):.2f} |"
            print(row, file=sys.stderr, flush=True)
            yield row


def exponent(lengths: list[int], times: list[float]) -> float:
    """Return p of time ~ length^p."""
    logs = ([math.log(n) for n in lengths], [math.log(t) for t in times])
    return statistics.linear_regression(*logs).slope


HEAD = """# Time against length, {date}

{machine}

One layer of attention, dim 32, 2 heads, windows of {radius} tokens on either side or chunks of as many, float32,
blockwise; milliseconds of CPU time, the least of {blocks} interleaved passes. p is the exponent of time ~ length^p,
fitted over the row.

| mixer | pass | {columns} | p |
|---|---|{rule}---:|
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mixers", nargs="+", choices=MIXERS, default=[*MIXERS])
    parser.add_argument("--longest", type=int, default=32768)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--out", type=Path, default=timing.RESULTS)
    args = parser.parse_args()
    timing.prepare(1)
    columns = lengths("", args.longest)
    head = HEAD.format(
        date=date.today(),
        machine=timing.machine(1),
        radius=RADIUS,
        blocks=args.blocks,
        columns=" | ".join(f"{n:,}" for n in columns),
        rule="---:|" * len(columns),
    )
    text = head + "\n".join(rows(args.mixers, args.longest, args.blocks)) + "\n"
    timing.write(text, "long", args.out)


if __name__ == "__main__":
    main()
