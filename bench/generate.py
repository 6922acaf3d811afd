"""Time per token and memory of a long text written with a cache: `python bench/generate.py --tokens 20000`.

A model whose layers all see through a window keeps a fixed number of tokens: both stay constant. One that
sees everything begins anew with half of its context whenever that is full.
"""

import argparse
import time

import psutil
import torch

from archwright.generation.sampling import sample
from archwright.model import build
from archwright.spec.read import load


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=8, help="lines to print")
    parser.add_argument("--mask", choices=["window", "causal"], default="window")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    size = ["attention.mask.size=128"] if args.mask == "window" else []
    spec = load("modern").override(
        "dim=128", "num_layers=4", "context_length=256", f"attention.mask.kind={args.mask}", *size
    )
    model = build(spec)
    print(model)
    print("| tokens | ms per token | resident memory |\n|---:|---:|---:|")
    every, start = args.tokens // args.rows, time.perf_counter()
    written = sample(model, torch.tensor([1, 2, 3]), max_new_tokens=args.tokens, temperature=1.0)
    for i, _ in enumerate(written, 1):
        if i % every == 0:
            seconds, start = time.perf_counter() - start, time.perf_counter()
            memory = psutil.Process().memory_info().rss / 2**20
            print(f"| {i:,} | {1e3 * seconds / every:.3f} | {memory:,.0f} MiB |", flush=True)


if __name__ == "__main__":
    main()
