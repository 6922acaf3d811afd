"""Recurrent layers next to transformers' torch path of the same layer, hybrids over lengths, and long decoding.

    python bench/mixers.py [--parts layers lengths steps decoding] [--blocks 9] [--help]

Forward and backward passes of one layer take turns, so that other work on the machine affects both. With
`--threads 1` the clock is the CPU time of the thread. The results are printed and written to bench/results/.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn

if __name__ == "__main__":  # as a script, its own folder is on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))
from archwright.data.inputs import Batch, Inputs
from archwright.generation.sampling import sample
from archwright.machine.precision import Precision
from archwright.model import build
from archwright.optim import build_optimizers
from archwright.parts.context import Context
from archwright.spec.optimizers import AdamW
from archwright.spec.read import load
from archwright.training.step import train_step
from bench import timing

SIZES = {
    "3.4M": {"dim": 256, "num_layers": 4, "num_heads": 4, "hidden_dim": 704},
    "30M": {"dim": 512, "num_layers": 8, "num_heads": 8, "hidden_dim": 1408},
}
LENGTH, VOCAB = 2048, 4096
LENGTHS = tuple(1024 * 2**i for i in range(5))
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}
LAYERS = {
    "gated DeltaNet": ("decay.kind=per_head",),
    "KDA": ("decay={kind='per_channel',rank=64}", "gate=sigmoid", "gate_rank=64"),
    "SSD": (
        *("write=step", "skip=true", "num_key_heads=1", "head_dim=128", "value_head_dim=64"),
        *("qk_norm=none", "scale=none", "conv_bias=true", "gate_position=before"),
        "out_norm_over=group",
    ),
}
"""Settings of a linear recurrence, which equal those of transformers' layer."""


def our_layer(name: str, size: str) -> nn.Module:
    """Return the mixer of a model with one layer."""
    dim, heads = SIZES[size]["dim"], SIZES[size]["num_heads"] * (1 + (name == "SSD"))
    words = (f"num_heads={heads}", *LAYERS[name])
    spec = load("gated-deltanet").override(
        f"dim={dim}", "num_layers=1", *(f"recurrence.{word}" for word in words)
    )
    mixer: nn.Module = next(iter(build(spec, seed=0).stack)).recurrence
    return mixer


def their_layer(name: str, size: str) -> nn.Module:
    """Return transformers' layer with as many parameters."""
    dim, heads = SIZES[size]["dim"], SIZES[size]["num_heads"]
    if name == "gated DeltaNet":
        from transformers.models.qwen3_next import modeling_qwen3_next as qwen

        sizes = {f"linear_num_{kind}_heads": heads for kind in ("key", "value")}
        widths = {f"linear_{kind}_head_dim": dim // heads for kind in ("key", "value")}
        config = qwen.Qwen3NextConfig(hidden_size=dim, num_hidden_layers=1, **sizes, **widths)
        return qwen.Qwen3NextGatedDeltaNet(config, 0)
    if name == "KDA":
        from transformers.models.kimi_linear import modeling_kimi_linear as kimi

        widths = {"linear_num_heads": heads, "linear_head_dim": dim // heads}
        config = kimi.KimiLinearConfig(hidden_size=dim, num_hidden_layers=1, **widths)
        layer = kimi.KimiLinearDeltaAttention(config, 0)
        with torch.no_grad():  # drawn by the model otherwise
            for x in layer.forget_gate.parameters():
                x.fill_(0.02) if x.ndim == 1 else None
        return layer
    from transformers.models.mamba2 import modeling_mamba2 as mamba

    # The largest of its usual chunks is slower here.
    widths = {"num_heads": 2 * heads, "head_dim": 64, "n_groups": 1, "chunk_size": 64}
    return mamba.Mamba2Mixer(
        mamba.Mamba2Config(hidden_size=dim, num_hidden_layers=1, state_size=128, **widths), 0
    )


def passes(
    layer: nn.Module, call: Callable[[Tensor], Tensor], dim: int, length: int, dtype: torch.dtype
) -> Callable[[], float]:
    """Return a function that runs a forward and a backward pass and returns its seconds."""
    x = torch.randn(1, length, dim, generator=torch.Generator().manual_seed(0))

    def run() -> float:
        layer.zero_grad()
        given = x.clone().requires_grad_()
        start = timing.clock()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            y = call(given)
        y.float().square().mean().backward()
        return timing.clock() - start

    run()  # warm
    return run


def our_passes(name: str, size: str, length: int, dtype: torch.dtype) -> Callable[[], float]:
    layer = our_layer(name, size)
    return passes(layer, lambda x: layer(x, Context.alone(x)), SIZES[size]["dim"], length, dtype)


def by_layer(blocks: int) -> Iterator[str]:
    """Yield a table row for each layer, size and dtype: milliseconds, and the ratio."""
    for size in SIZES:
        for name in LAYERS:
            for dtype_name, dtype in DTYPES.items():
                theirs = their_layer(name, size)
                times = timing.take_turns(
                    {
                        "ours": our_passes(name, size, LENGTH, dtype),
                        "theirs": passes(theirs, theirs, SIZES[size]["dim"], LENGTH, dtype),
                    },
                    blocks,
                )
                ours, others = (1e3 * statistics.median(t) for t in times.values())
                ratio = timing.ratio(times["theirs"], times["ours"])
                yield shown(
                    f"| {size} | {name} | {dtype_name} | {ours:.1f} | {others:.1f} | {ratio} |"
                )


def by_length(blocks: int) -> Iterator[str]:
    """Yield a table row for each layer: milliseconds over lengths, and the exponent."""
    for name in LAYERS:
        runs = {str(n): our_passes(name, "3.4M", n, torch.float32) for n in LENGTHS}
        times = [statistics.median(t) for t in timing.take_turns(runs, blocks).values()]
        logs = [[math.log(x) for x in values] for values in (LENGTHS, times)]
        slope = statistics.linear_regression(*logs).slope
        yield shown(f"| {name} | {' | '.join(f'{1e3 * t:,.0f}' for t in times)} | {slope:.3f} |")


def trainer(preset: str, length: int) -> Callable[[], float]:
    """Return a function that trains a step and returns its seconds."""
    size = SIZES["3.4M"]
    spec = load(preset).override(
        *(f"{key}={size[key]}" for key in ("dim", "num_layers")),
        *(f"feedforward.hidden_dim={size['hidden_dim']}", f"vocab_size={VOCAB}"),
        *(f"attention.num_heads={size['num_heads']}", f"context_length={length}"),
    )
    model = build(spec, seed=0).train()
    optimizers = build_optimizers(model, AdamW(lr=3e-4))
    precision = Precision("bf16", torch.device("cpu"))
    tokens = torch.randint(VOCAB, (1, length + 1), generator=torch.Generator().manual_seed(0))
    batch = Batch(Inputs(tokens[:, :-1]), tokens[:, 1:])

    def step() -> float:
        start = timing.clock()
        train_step(model, batch, optimizers, lr_scale=1.0, precision=precision, max_grad_norm=1.0)
        return timing.clock() - start

    step()  # warm
    return step


def by_step(blocks: int) -> Iterator[str]:
    """Yield a table row for each length: a step with full attention and with a 3:1 hybrid."""
    for length in LENGTHS:
        times = timing.take_turns(
            {preset: trainer(preset, length) for preset in ("modern", "hybrid-3-1")}, blocks
        )
        full, hybrid = (1e3 * statistics.median(t) for t in times.values())
        ratio = timing.ratio(times["modern"], times["hybrid-3-1"])
        yield shown(f"| {length:,} | {full:,.0f} | {hybrid:,.0f} | {ratio} |")


def by_token(tokens: int, rows: int = 5) -> Iterator[str]:
    """Yield a table row for each part of a long text: milliseconds per token, and memory."""
    spec = load("gated-deltanet").override(
        "dim=256", "num_layers=4", f"vocab_size={VOCAB}", "context_length=2048"
    )
    model = build(spec, seed=0).eval()
    ends = [100, *(tokens * (i + 1) // rows for i in range(rows))]
    start, before = timing.clock(), 0
    for i, _ in enumerate(sample(model, torch.tensor([1, 2, 3]), max_new_tokens=tokens), 1):
        if i in ends:
            each = 1e3 * (timing.clock() - start) / (i - before)
            memory = psutil.Process().memory_info().rss / 2**20
            yield shown(f"| {before + 1:,} to {i:,} | {each:.2f} | {memory:,.0f} |")
            start, before = timing.clock(), i


def shown(row: str) -> str:
    print(row, file=sys.stderr, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ("layers", "lengths", "steps", "decoding")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=timing.CORES)
    parser.add_argument("--out", type=Path, default=timing.RESULTS)
    args = parser.parse_args()
    timing.prepare(args.threads)
    tables = {
        "layers": (
            f"## Forward and backward pass of a layer, 1 row of {LENGTH:,} tokens\n\n"
            "| size | layer | dtype | archwright, ms | transformers, ms | archwright is faster |\n"
            "|---|---|---|---:|---:|---|",
            lambda: by_layer(args.blocks),
        ),
        "lengths": (
            "## Layers over lengths, 3.4M, float32, ms\n\n"
            f"| layer | {' | '.join(f'{n:,}' for n in LENGTHS)} | exponent |\n"
            f"|---|{'---:|' * len(LENGTHS)}---:|",
            lambda: by_length(min(args.blocks, 5)),
        ),
        "steps": (
            "## Training step of a whole model, 3.4M, bf16, 1 row\n\n"
            "| tokens | full attention, ms | 3:1 hybrid, ms | hybrid is faster |\n|---:|---:|---:|---|",
            lambda: by_step(min(args.blocks, 5)),
        ),
        "decoding": (
            "## Decoding with a gated DeltaNet, 3.4M, float32, one text\n\n"
            "| tokens | ms per token | resident memory, MiB |\n|---|---:|---:|",
            lambda: by_token(args.tokens),
        ),
    }
    pages = ["\n".join((head, *rows())) for head, rows in (tables[part] for part in args.parts)]
    clock = "wall time" if args.threads > 1 else "CPU time of the thread"
    head = (
        f"# Recurrent layers, {date.today()}\n\n{timing.machine(args.threads)}\n\n"
        f"Contenders take turns; {clock}, medians of {args.blocks} passes or fewer. Ratios are medians over pairs, "
        "with their bootstrapped 95 % interval."
    )
    timing.write("\n\n".join((head, *pages)) + "\n", "mixers", args.out)


if __name__ == "__main__":
    main()
