"""Training speed of archwright beside transformers: same shape, weights, precision, allocator and optimizer.

    python bench/train_speed.py [--shapes 3.4M 29.9M] [--precision bf16 fp32] [--compile] [--help]

Both train in one process, in short blocks that take turns, so that whatever else the machine does falls on
both alike. Before that their losses on one batch are compared: what differs is the speed and nothing else.
With `--threads 1` the clock is that of the thread's own CPU time, which other programs disturb little.
The results are printed and written to bench/results/ as Markdown.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import numpy as np
import psutil
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from archwright.model import Decoder, build
from archwright.optim import build_optimizers
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load
from archwright.spec.run_spec import AdamW
from archwright.training.allocator import tune_allocator
from archwright.training.machine import _cpu_name
from archwright.training.precision import DTYPES, Precision
from archwright.training.products import fastest_float32
from archwright.training.step import TensorBatch, train_step

LR = 3e-4
ROTATING = 8
"""Different batches that a contender trains on in turn."""
CLOCKS = {True: "CPU time of the one thread", False: "wall time"}


@dataclass(frozen=True)
class Shape:
    """A Llama-shaped model with a tied head, and its batch."""

    dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    hidden_dim: int
    vocab_size: int
    batch_size: int
    length: int

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.batch_size * self.length


SHAPES = {
    "0.9M": Shape(128, 4, 2, 1, 320, 2048, 16, 256),
    "3.4M": Shape(192, 6, 6, 6, 512, 4096, 16, 256),
    "29.9M": Shape(512, 8, 8, 8, 1408, 8192, 8, 512),
}


@dataclass
class Contender:
    """A model in training, and the seconds per step of each of its blocks."""

    name: str
    step: Callable[[Tensor, Tensor], float]
    times: list[float] = field(default_factory=list)


def main() -> None:
    args = _arguments()
    tuned = args.allocator == "tuned" and tune_allocator()
    torch.set_num_threads(args.threads)
    name, products = fastest_float32()
    torch.set_float32_matmul_precision(name)
    results = [
        _measure(name, precision, args) for precision in args.precision for name in args.shapes
    ]
    text = _page(results, args, tuned, products)
    print(text)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        path = args.out / f"{date.today()}-train-speed.md"
        path.write_text(text, encoding="utf-8")
        print(f"written to {path}")


def _measure(name: str, precision: str, args: argparse.Namespace) -> "Result":
    """Train all contenders on one shape, block by block."""
    shape = SHAPES[name]
    batches = list(_batches(shape))
    peaks = [_peak(precision)]
    contenders = _contenders(shape, precision, args, batches[0])
    steps = _steps_per_block(contenders, batches, args.seconds)
    for block in range(args.blocks):
        for contender in contenders if block % 2 == 0 else reversed(contenders):
            contender.times.append(_block(contender, batches, steps))
    peaks.append(_peak(precision))
    size = build(_spec(shape), device="meta").num_parameters()
    result = Result(name, precision, shape, size, max(peaks), contenders[0], contenders[1:])
    print(*result.rows(), sep="\n", flush=True)
    return result


@dataclass
class Result:
    """What one shape gave at one precision."""

    name: str
    precision: str
    shape: Shape
    num_parameters: int
    peak: float
    ours: Contender
    peers: list[Contender]

    def rows(self) -> Iterator[str]:
        """Yield a table row for each contender."""
        flops = (
            6 * self.num_parameters + 6 * self.shape.num_layers * self.shape.dim * self.shape.length
        )
        for contender in (self.ours, *self.peers):
            speed = self.shape.tokens / statistics.median(contender.times)
            compared = "" if contender is self.ours else _ratio(contender.times, self.ours.times)
            yield (
                f"| {self.name} | {self.precision} | {contender.name} | {speed:,.0f} | {compared} "
                f"| {100 * flops * speed / self.peak:.0f} % |"
            )


def _contenders(
    shape: Shape, precision: str, args: argparse.Namespace, batch: tuple[Tensor, Tensor]
) -> list[Contender]:
    """Return ours first, then transformers' on the same weights, then the compiled ones if asked for."""
    ours, theirs = _our_model(shape), _their_model(shape)
    _copy_weights(ours, theirs)
    _compare_losses(ours, theirs, precision, *batch)
    found = [
        Contender("archwright", _our_step(ours, precision)),
        Contender("transformers", _their_step(theirs, precision)),
    ]
    if args.compile:
        compiled = _our_model(shape)
        for layer in compiled.layers:
            layer.compile()
        found.append(Contender("archwright, compiled", _our_step(compiled, precision)))
        found.append(
            Contender(
                "transformers, compiled", _their_step(torch.compile(_their_model(shape)), precision)
            )
        )
    return found


def _our_model(shape: Shape) -> Decoder:
    return build(_spec(shape), seed=0).train()


def _spec(shape: Shape) -> ModelSpec:
    return load("modern").override(
        f"dim={shape.dim}",
        f"num_layers={shape.num_layers}",
        f"attention.num_heads={shape.num_heads}",
        f"attention.num_kv_heads={shape.num_kv_heads}",
        f"feedforward.hidden_dim={shape.hidden_dim}",
        f"vocab_size={shape.vocab_size}",
        f"context_length={shape.length}",
        "head.tied=true",
    )


def _our_step(model: nn.Module, precision: str) -> Callable[[Tensor, Tensor], float]:
    optimizers = build_optimizers(model, AdamW(lr=LR))
    of_step = Precision(precision, torch.device("cpu"))

    def step(tokens: Tensor, targets: Tensor) -> float:
        batch = TensorBatch(tokens, targets)
        return train_step(model, batch, optimizers, rate=1.0, precision=of_step, clip=1.0).loss

    return step


def _their_model(shape: Shape) -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=shape.dim,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        intermediate_size=shape.hidden_dim,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.length,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return transformers.LlamaForCausalLM(config).train()


def _their_step(model: nn.Module, precision: str) -> Callable[[Tensor, Tensor], float]:
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        parameters, lr=LR, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )

    def step(tokens: Tensor, targets: Tensor) -> float:
        with _autocast(precision):
            logits = model(input_ids=tokens).logits
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


THEIR_NAMES = {
    "residual.norms.attention": "input_layernorm",
    "residual.norms.feedforward": "post_attention_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "feedforward.gate": "mlp.gate_proj",
    "feedforward.up": "mlp.up_proj",
    "feedforward.down": "mlp.down_proj",
}
"""Of a layer's weights."""


def _copy_weights(ours: Decoder, theirs: nn.Module) -> None:
    """Give transformers' model our weights, so that both compute the same function."""
    names = {"embedding": "embed_tokens", "norm": "norm"}
    for i in range(len(ours.layers)):
        names |= {f"layers.{i}.{o}": f"layers.{i}.{t}" for o, t in THEIR_NAMES.items()}
    values = ours.state_dict()
    weights = {f"model.{t}.weight": values[f"{o}.weight"] for o, t in names.items()}
    missing, _ = theirs.load_state_dict(weights, strict=False)
    assert missing in ([], ["lm_head.weight"]), missing  # the tied head


@torch.no_grad()
def _compare_losses(
    ours: nn.Module, theirs: nn.Module, precision: str, tokens: Tensor, targets: Tensor
) -> None:
    """Refuse to compare two models that do not compute the same."""
    with _autocast(precision):
        logits = [ours(tokens).logits, theirs(input_ids=tokens).logits]
    a, b = (F.cross_entropy(x.float().flatten(0, 1), targets.flatten()).item() for x in logits)
    assert abs(a - b) < (1e-4 if precision == "fp32" else 1e-2), f"losses differ: {a} and {b}"


def _autocast(precision: str) -> torch.autocast | nullcontext[None]:
    return nullcontext() if precision == "fp32" else torch.autocast("cpu", DTYPES[precision])


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
    for contender in contenders:
        _block(contender, batches, 2)
    return max(1, round(seconds / min(_block(c, batches, 1) for c in contenders)))


def _block(contender: Contender, batches: list[tuple[Tensor, Tensor]], steps: int) -> float:
    """Return the seconds per step of one block."""
    start = _clock()
    for i in range(steps):
        contender.step(*batches[i % len(batches)])
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

{cpu}, {threads} threads, {memory:.0f} GiB; Python {python}, torch {torch}, transformers {transformers}; \
allocator {allocator} for all; {products}; load at the end {load:.1f}.

{blocks} interleaved blocks of about {seconds:g} s, {clock}; medians. Full steps: forward, loss, \
backward, clipping, fused AdamW. "Ours is faster" is the median ratio of neighbouring blocks, with its \
bootstrapped 95 % interval. FLOPs per token are 6 N + 6 L d T, a tied table counted once; measured peaks: \
{peaks}.

| model | precision | trainer | tokens/s | ours is faster | of peak |
|---|---|---|---:|---|---:|
"""


def _page(results: list[Result], args: argparse.Namespace, tuned: bool, products: str) -> str:
    peaks = [f"{r.precision} {r.peak / 1e9:.0f} GFLOP/s" for r in results]
    head = HEAD.format(
        date=date.today(),
        cpu=_cpu_name(),
        threads=args.threads,
        memory=psutil.virtual_memory().total / 2**30,
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        allocator="tuned" if tuned else "as the system has it",
        products=products,
        load=os.getloadavg()[0],
        blocks=args.blocks,
        seconds=args.seconds,
        clock=CLOCKS[args.threads == 1],
        peaks=", ".join(peaks),
    )
    return head + "\n".join(row for result in results for row in result.rows()) + "\n"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--precision", nargs="+", choices=["bf16", "fp32"], default=["bf16"])
    parser.add_argument("--compile", action="store_true", help="add both compiled")
    parser.add_argument("--allocator", choices=["tuned", "default"], default="tuned")
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one block")
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
