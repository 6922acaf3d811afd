"""Training speed on a CUDA GPU, beside transformers and litgpt in the same process.

    python bench/gpu.py [--shapes 124M 1B] [--compile] [--precision fp8] [--fused] [--help]

Llama-shaped models of 124 million and 1 billion parameters. Each trains alone, as it needs the memory, in short
blocks; speeds are medians. Utilisation is given against the rate of matrix products that is measured here, and,
for cards in the table, against their data sheet. Results are printed and written to bench/results/ as Markdown.
`--device cpu --shapes tiny` tries the script where there is no GPU; its numbers then mean nothing. Written without
a GPU at hand: it has only been run in that way so far.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archwright.data.inputs import Batch, Inputs
from archwright.machine.compiling import compile_parts
from archwright.machine.float8 import check_float8
from archwright.machine.liger import check_liger, fuse
from archwright.machine.peaks import measure_peak
from archwright.machine.precision import Precision
from archwright.machine.rules import cpu_name
from archwright.model import build
from archwright.optim import build_optimizers
from archwright.planning.cost import flops_per_token
from archwright.planning.memory import WHOLE_LOGITS, logit_bytes
from archwright.spec.errors import UserError
from archwright.spec.machine import MachineSpec
from archwright.spec.optimizers import AdamW
from archwright.training.step import train_step

if __name__ == "__main__":  # as a script, its own folder is on the path
    from contenders import MODELS, Shape, llama_spec
else:
    from bench.contenders import MODELS, Shape, llama_spec

LR = 3e-4
SHAPES = {
    "tiny": Shape(64, 2, 2, 1, 128, 512, 2, 64),
    "124M": Shape(768, 12, 12, 12, 2048, 50304, 16, 1024),
    "1B": Shape(2048, 16, 32, 8, 8192, 128256, 4, 2048),
}
DATA_SHEETS = {"A100": 312e12, "H100 80GB HBM3": 989e12, "H200": 989e12, "RTX 4090": 165e12}
"""FLOP/s of dense bf16 products as the maker states them, by a part of the card's name."""
PEERS = ("transformers", "litgpt")
Step = Callable[[Tensor, Tensor], None]


@dataclass(frozen=True)
class Measured:
    """Tokens per second of one trainer, in each of its blocks, and the most memory it took."""

    name: str
    speeds: list[float]
    memory: int


def main() -> None:
    args = _arguments()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device available; --device cpu --shapes tiny tries the script without one")
        return
    try:
        if args.precision == "fp8":
            check_float8(args.device)
        if args.fused:
            check_liger(MachineSpec(device=args.device, fused="liger"))
    except UserError as error:
        print(error)
        return
    text = page(args)
    print(text)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{date.today()}-gpu.md").write_text(text, encoding="utf-8")


def page(args: argparse.Namespace) -> str:
    """Measure all shapes, and return the results as Markdown."""
    device = torch.device(args.device)
    rate = measure_peak(device, torch.bfloat16, seconds=args.seconds).flops
    card = torch.cuda.get_device_name() if device.type == "cuda" else cpu_name()
    sheet = next((flops for name, flops in DATA_SHEETS.items() if name in card), None)
    lines = [
        f"# Training on a GPU, {date.today()}",
        "",
        f"{card}; torch {torch.__version__}; ours in {args.precision}, peers in bf16; matrix products in bf16 reach "
        f"{rate / 1e12:.1f} TFLOP/s here"
        + (f", {sheet / 1e12:.0f} by the data sheet" if sheet else "")
        + f"; {args.blocks} blocks of about {args.seconds:g} s.",
        "",
        "| model | trainer | tokens/s | of measured | of data sheet | most memory |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name in args.shapes:
        flops = model_flops(SHAPES[name])
        for found in measure(SHAPES[name], device, args):
            done = flops * statistics.median(found.speeds)
            lines.append(
                f"| {name} | {found.name} | {statistics.median(found.speeds):,.0f} | {done / rate:.0%} "
                f"| {f'{done / sheet:.0%}' if sheet else ''} | {found.memory / 2**30:.1f} GiB |"
            )
    return "\n".join(lines) + "\n"


def measure(shape: Shape, device: torch.device, args: argparse.Namespace) -> Iterator[Measured]:
    """Train each trainer alone on the device, so that it has all memory."""
    size = (shape.batch_size, shape.length + 1)
    drawn = torch.randint(shape.vocab_size, size, generator=torch.Generator().manual_seed(0))
    tokens, targets = (x.contiguous().to(device) for x in (drawn[:, :-1], drawn[:, 1:]))
    ours = {"archwright": "none"} | ({"archwright, liger": "liger"} if args.fused else {})
    for name in (*ours, *args.peers):
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        step = (
            own_step(shape, device, args, ours[name])
            if name in ours
            else peer_step(name, shape, device, args.compile)
        )
        seconds = [_seconds(step, tokens, targets, device) for _ in range(3)][-1]
        steps = max(1, round(args.seconds / seconds))
        speeds = []
        for _ in range(args.blocks):
            taken = _seconds(step, tokens, targets, device, steps)
            speeds.append(shape.tokens / taken)
        memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
        yield Measured(name, speeds, memory)
        del step


def own_step(shape: Shape, device: torch.device, args: argparse.Namespace, fused: str) -> Step:
    """Return the step that `archwright train` takes."""
    model = build(llama_spec(shape), seed=0, device=device).use_kernel(args.kernel).train()
    chunked = logit_bytes(model, shape.batch_size) > WHOLE_LOGITS
    if args.compile:
        compile_parts(model, "block", whole_loss=not chunked)
    if fused == "liger":
        loss, compiled = "chunked" if chunked else "whole", "block" if args.compile else "none"
        fuse(model, MachineSpec(loss=loss, compile=compiled, precision=args.precision))
    optimizers = build_optimizers(model, AdamW(lr=LR))
    of_step = Precision(args.precision, device, model.head.d_out)

    def step(tokens: Tensor, targets: Tensor) -> None:
        batch = Batch(Inputs(tokens), targets)
        train_step(model, batch, optimizers, lr_scale=1.0, precision=of_step, chunked=chunked)

    return step


def peer_step(name: str, shape: Shape, device: torch.device, compiled: bool) -> Step:
    """Return a peer's step as its users would write it: autocast, clipping, fused AdamW."""
    torch.manual_seed(0)
    model = MODELS[name](shape).to(device).train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=LR, betas=(0.9, 0.95), fused=True)
    run = torch.compile(model) if compiled else model

    def step(tokens: Tensor, targets: Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            found = run(tokens)
            logits = found if isinstance(found, Tensor) else found.logits
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def model_flops(shape: Shape) -> float:
    """Return the FLOPs of a token's forward and backward pass, the same for all trainers."""
    return flops_per_token(build(llama_spec(shape), device="meta"), shape.length)


def _seconds(
    step: Step, tokens: Tensor, targets: Tensor, device: torch.device, steps: int = 1
) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        step(tokens, targets)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["124M", "1B"])
    parser.add_argument("--peers", nargs="*", choices=MODELS, default=list(PEERS))
    parser.add_argument("--precision", choices=["bf16", "fp8"], default="bf16")
    parser.add_argument("--kernel", choices=["sdpa", "flex", "blockwise"], default="sdpa")
    parser.add_argument("--compile", action="store_true", help="compile all of them")
    parser.add_argument("--fused", action="store_true", help="train ours with liger's kernels, too")
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one block")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
