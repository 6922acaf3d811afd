"""Stages of `bench/gpu_check.py`: each measures one thing, and appends every number at once to a file."""

import argparse
import copy
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, partialmethod
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from archwright import losses
from archwright.data.inputs import Batch, Inputs
from archwright.generation.sampling import sample
from archwright.losses import cross_entropy, linear_cross_entropy
from archwright.machine.compiling import compile_parts
from archwright.machine.decide import CUDA_LOGITS
from archwright.machine.liger import fuse, why_not_fusable
from archwright.machine.peaks import measure_bandwidth, measure_peak
from archwright.machine.precision import Precision
from archwright.model import build
from archwright.model.model import Decoder
from archwright.optim import build_optimizers
from archwright.parts.embeddings import Head
from archwright.parts.kernels import ScoreMods, kernel_of
from archwright.parts.masks import AttentionMask, pattern_of
from archwright.parts.token_layout import TokenLayout
from archwright.planning.cost import flops_per_token
from archwright.planning.memory import WHOLE_LOGITS, logit_bytes, total_memory
from archwright.spec import embeddings as spec_of
from archwright.spec.machine import MachineSpec
from archwright.spec.masks import Causal, Mask, Window
from archwright.spec.model_spec import ModelSpec
from archwright.spec.optimizers import AdamW, Muon
from archwright.spec.read import load
from archwright.spec.scale_down import tiny
from archwright.training.step import train_step
from bench.contenders import Shape, llama_spec

SMALL = Shape(32, 2, 2, 1, 64, 256, 2, 32)
SHAPES = {
    "124M": Shape(768, 12, 12, 12, 2048, 50304, 16, 1024),
    "1B": Shape(2048, 16, 32, 8, 8192, 128256, 4, 2048),
}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "124M": {
        "uncompiled": {"compiled": False},
        "compiled": {},
        "flex": {"kernel": "flex"},
        "bf16 stream": {"narrow": True},
        "liger": {"compiled": False, "liger": True},
        "fp8": {"precision": "fp8"},
        "8 experts": {"experts": True},
        "8 experts, uncompiled": {"experts": True, "compiled": False},
    },
    "1B": {
        "compiled": {},
        "chunked loss": {"chunked": True},
        "selective checkpointing": {"again": "selective"},
        "full checkpointing": {"again": "full"},
        "Muon": {"muon": True},
        "fp8": {"precision": "fp8"},
    },
}
"""Settings of `_step` by model and variant."""
WINDOW = ("attention.mask.kind=window", "attention.mask.size=8")
CHECKED: dict[str, tuple[str, ...]] = {"modern": (), "window": WINDOW, "mixtral-8x7b": ()}
CHECKED |= dict.fromkeys(("textbook", "gemma-2-2b", "gemma-3-1b", "deepseek-v2-lite"), ())
CHECKED |= dict.fromkeys(("bert-base", "albert-base"), ())
MASKS: dict[str, Mask] = {"causal": Causal(), "window": Window(size=1024), "documents": Causal()}
TOLERANCE = {"fp32": 2e-5, "bf16": 2e-2}
"""Largest relative error of the loss and of the norm of all gradients."""


@dataclass(frozen=True)
class Stage:
    """Settings of a stage, and the file of its numbers."""

    name: str
    device: torch.device
    tiny: bool
    out: Path

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def put(self, key: str, value: Any, unit: str = "") -> None:
        """Append a number."""
        card = torch.cuda.get_device_name() if self.cuda else "cpu"
        row = {"stage": self.name, "key": key, "value": value, "unit": unit}
        row |= {"seconds": round(time.perf_counter() - START, 2), "commit": COMMIT, "device": card}
        with self.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def attempt(self, work: Callable[..., None], key: str, *args: Any) -> None:
        """Call work(self, key, ...); an error is recorded and ends only this call."""
        try:
            work(self, key, *args)
        except Exception as error:  # of any kernel or compiler
            self.put(key, f"{type(error).__name__}: {str(error).splitlines()[:1]}"[:200], "error")
        if self.cuda:
            torch.cuda.empty_cache()

    def seconds(self, work: Callable[[], Any], lasting: float = 1.0) -> float:
        """Return the median seconds of a call, after two calls that warm up."""
        times: list[float] = []
        while len(times) < 5 or sum(times) < (0.01 if self.tiny else lasting):
            self.wait()
            start = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - start)
        return statistics.median(times[2:])

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    @contextmanager
    def memory(self, key: str) -> Iterator[None]:
        """Record the peak memory of a GPU."""
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        yield
        if self.cuda:
            self.put(f"{key}: memory", torch.cuda.max_memory_allocated() / 2**20, "MiB")

    def shape(self, shape: Shape) -> Shape:
        return SMALL if self.tiny else shape


def machine(at: Stage) -> None:
    """Versions, rates of matmuls, bandwidths, and the time of a launch."""
    at.put("torch", torch.__version__)
    at.put("cuda", str(torch.version.cuda))
    for dtype in (torch.float32,) if at.tiny else (torch.bfloat16, torch.float32):
        at.put(f"matmul {dtype}", measure_peak(at.device, dtype).flops / 1e12, "TFLOP/s")
    at.put("memory bandwidth", measure_bandwidth(at.device) / 1e9, "GB/s")
    x = torch.zeros(8, device=at.device)
    at.put("launch", 1e3 * at.seconds(lambda: [x.add_(1) for _ in range(1000)]), "us")
    host = torch.zeros(2**14 if at.tiny else 2**26)
    sources = {"pageable": host, **({"pinned": host.pin_memory()} if at.cuda else {})}
    for name, source in sources.items():
        took = at.seconds(partial(source.to, at.device, copy=True))
        at.put(f"copy to the device, {name}", 4 * len(host) / took / 1e9, "GB/s")


def correct(at: Stage) -> None:
    """Loss and gradients of tiny models by kernel and precision, next to float64 on the CPU."""
    for name in [*CHECKED][: 3 if at.tiny else None]:
        at.attempt(_correct, name)


def _correct(at: Stage, name: str) -> None:
    spec = _checked(name)
    plain, batch = build(spec, seed=3), _batch(spec, 2, 24)
    exact = Precision("fp32", torch.device("cpu"))
    wanted = _gradients(copy.deepcopy(plain).double(), batch, exact)
    mixes = spec.feedforward.kind == "experts"
    for kernel in ("eager", "sdpa", "flex"):
        for precision in ("fp32",) if mixes else TOLERANCE:  # rounding chooses other experts
            model = copy.deepcopy(plain).to(at.device).use_kernel(kernel)
            error = _error(_gradients(model, batch, Precision(precision, at.device)), wanted)
            key = f"{name}, {kernel}, {precision}: error"
            at.put(key, error, _verdict(error < TOLERANCE[precision]))


def _checked(name: str) -> ModelSpec:
    spec = tiny(load("modern" if name == "window" else name))
    return spec.override("vocab_size=256", *CHECKED[name])


def _error(found: tuple[float, float], wanted: tuple[float, float]) -> float:
    """Return the larger relative error of loss and gradient norm."""
    return max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))


def _gradients(model: Decoder, batch: Batch, precision: Precision) -> tuple[float, float]:
    """Return the loss and the norm of all gradients."""
    batch = batch.map(lambda x: x.to(precision.device))
    with precision.autocast():
        out = model.eval()(**batch.inputs.given())
    total = cross_entropy(out.logits, batch.targets).total
    total.backward()
    norms = [p.grad.double().norm() for p in model.parameters() if p.grad is not None]
    return total.item(), torch.stack(norms).norm().item()


def syncs(at: Stage) -> None:
    """Waits of the host for the GPU in a step: one, for the losses."""
    for name in ("modern", "window", "mixtral-8x7b"):
        spec = _checked(name)
        step = _step(at, spec, _batch(spec, 4, 32), chunked=name == "modern", compiled=False)
        step()
        if not at.cuda:
            at.put(name, "not counted without a GPU")
            continue
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step()
        torch.cuda.set_sync_debug_mode("default")
        waits = [f"{w.filename}:{w.lineno}" for w in caught if "synchroniz" in str(w.message)]
        at.put(name, len(waits), f"waits, {_verdict(len(waits) <= 1)}")
        at.put(f"{name}: lines", sorted({*waits}))


def compile(at: Stage) -> None:
    """Compiled layers: graphs, breaks, seconds, and gradients next to those of uncompiled ones."""
    masks = {"causal": (), "window": WINDOW, "documents": ()}
    for kernel, (mask, changes) in product(("sdpa", "flex"), masks.items()):
        at.attempt(_compile, f"{kernel}, {mask}", kernel, mask == "documents", changes)


def _compile(at: Stage, key: str, kernel: str, documents: bool, changes: tuple[str, ...]) -> None:
    from torch._dynamo.utils import counters

    shape = at.shape(Shape(256, 4, 4, 2, 512, 1024, 2, 512))
    spec = llama_spec(shape).override(*changes)
    batch = _batch(spec, shape.batch_size, shape.length, documents=documents)
    precision = Precision("bf16", at.device)
    model = build(spec, seed=0, device=at.device).use_kernel(kernel)
    wanted = _gradients(model, batch, precision)
    model.zero_grad(set_to_none=True)
    torch._dynamo.reset()
    counters.clear()
    used, reason = compile_parts(model, "block", whole_loss=False)
    start = time.perf_counter()
    error = _error(_gradients(model, batch, precision), wanted)
    at.put(f"{key}: compiled", used, reason)
    at.put(f"{key}: first pass", time.perf_counter() - start, "s")
    graphs = [counters["stats"]["unique_graphs"], len(counters["graph_break"])]
    at.put(f"{key}: graphs, breaks", graphs, _verdict(graphs == [1, 0]))
    at.put(f"{key}: error", error, _verdict(error < TOLERANCE["bf16"]))


def attention(at: Stage) -> None:
    """Forward and backward passes of attention by shape (batch, length, heads, kv, dim), mask and kernel."""
    shapes = [(16, 1024, 12, 12, 64), (4, 2048, 32, 8, 64), (1, 8192, 32, 8, 128)]
    shapes = [(1, 64, 4, 2, 16)] if at.tiny else [*shapes, (1, 32768, 32, 8, 128)]
    for shape, mask, kernel in product(shapes, MASKS, ("sdpa", "flex", "eager")):
        if kernel != "eager" or shape[1] < 4096:
            at.attempt(_attention, f"{shape}, {mask}, {kernel}", shape, mask, kernel)


def _attention(at: Stage, key: str, shape: tuple[int, ...], mask: str, kernel: str) -> None:
    batch, length, heads, groups, dim = shape
    ids = torch.arange(length, device=at.device).expand(batch, -1) // max(1, length // 4)
    layout = TokenLayout(length, at.device, segment_ids=ids if mask == "documents" else None)
    seen = AttentionMask(pattern_of(MASKS[mask], heads), layout)
    like: dict[str, Any] = {"device": at.device, "dtype": torch.bfloat16, "requires_grad": True}
    q, k, v = (torch.randn(batch, length, h, dim, **like) for h in (heads, groups, groups))
    chosen, scores = kernel_of(kernel), ScoreMods(scale=dim**-0.5)
    start = time.perf_counter()
    chosen.prepare(seen)
    at.wait()
    at.put(f"{key}: mask", 1e3 * (time.perf_counter() - start), "ms")
    with at.memory(key):
        took = at.seconds(lambda: chosen.run(q, k, v, seen, scores).sum().backward(), 0.3)
    at.put(key, 1e3 * took, "ms")


def loss(at: Stage) -> None:
    """Forward and backward passes of the head and the loss by bytes of a chunk."""
    sizes = [(256, 32, 64)] if at.tiny else [(50304, 768, 16384), (128256, 2048, 8192)]
    for shape, size in product(sizes, (0, *range(26, 32))):
        words = f"chunks of 2^{size} bytes" if size else "whole"
        at.attempt(_loss, f"{shape[0]} tokens, {words}", shape, size)


def _loss(at: Stage, key: str, shape: tuple[int, ...], size: int) -> None:
    vocab, dim, rows = shape
    head = Head(spec_of.Head(), dim, vocab).to(at.device)
    hidden = torch.randn(rows, dim, device=at.device, requires_grad=True)
    targets = torch.randint(vocab, (rows,), device=at.device)
    losses.CUDA_LINEAR_CHUNK, losses.CUDA_ROWS = 2**size, 1

    def step() -> None:
        with Precision("bf16", at.device).autocast():
            if size:
                total = linear_cross_entropy(hidden, head, targets).total
            else:
                total = cross_entropy(head(hidden), targets).total
        total.backward()

    with at.memory(key):
        at.put(key, 1e3 * at.seconds(step, 0.5), "ms")


def train(at: Stage) -> None:
    """Training steps of `VARIANTS`: tokens per second, share of the measured rate of matmuls, memory."""
    size = at.name.removeprefix("train-")
    peak = measure_peak(at.device, torch.float32 if at.tiny else torch.bfloat16).flops
    for name, settings in VARIANTS[size].items():
        at.attempt(_train, name, at.shape(SHAPES[size]), peak, settings)


def _train(at: Stage, key: str, shape: Shape, peak: float, settings: dict[str, Any]) -> None:
    spec = llama_spec(shape)
    if settings.get("experts"):
        spec = llama_spec(shape).override("feedforward.kind=experts", "feedforward.num_experts=8")
    flops = flops_per_token(build(spec, device="meta"), shape.length)
    options = {name: value for name, value in settings.items() if name != "experts"}
    step = _step(at, spec, _batch(spec, shape.batch_size, shape.length), **options)
    start = time.perf_counter()
    step()
    at.wait()
    at.put(f"{key}: first step", time.perf_counter() - start, "s")
    with at.memory(key):
        speed = shape.tokens / at.seconds(step, 5.0)
    at.put(key, speed, "tokens/s")
    at.put(f"{key}: of the measured peak", speed * flops / peak)


def decode(at: Stage) -> None:
    """Generated tokens per second, next to one read of all weights per token."""
    bandwidth = measure_bandwidth(at.device)
    for size, full in SHAPES.items():
        shape = at.shape(full)
        model = build(llama_spec(shape), seed=0, device=at.device).bfloat16().eval()
        prompt = torch.zeros(shape.length // 2, dtype=torch.long, device=at.device)
        tokens = sample(model, prompt, max_new_tokens=4 if at.tiny else 200)
        next(tokens)
        start = time.perf_counter()
        speed = sum(1 for _ in tokens) / (time.perf_counter() - start)
        at.put(f"{size}, context {len(prompt)}", speed, "tokens/s")
        at.put(f"{size}: of the bandwidth", speed * 2 * model.num_parameters() / bandwidth)


def commands(at: Stage) -> None:
    """The command line on a device, and torchrun with one process."""
    with tempfile.TemporaryDirectory() as folder:
        text, alone, ranks = (Path(folder) / name for name in ("text.txt", "alone", "ranks"))
        text.write_text("The cat sat on the mat. A dog ran to the door. " * 2000, encoding="utf-8")
        run = [
            "modern",
            "--tiny",
            f"machine.device={at.device.type}",
            "batch_size=2",
            f'data.text=["{text}"]',
        ]
        archwright = [sys.executable, "-m", "archwright"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        steps = {
            "train": [*archwright, "train", *run, "budget=20steps", "--out", str(alone)],
            "eval": [*archwright, "eval", str(alone)],
            "generate": [*archwright, "generate", str(alone), "The cat"],
            "torchrun": [*torchrun, *archwright[1:], "train", *run, "budget=20steps"],
        }
        steps["torchrun"] += ["--out", str(ranks)]
        for name, command in [*steps.items()][: 1 if at.tiny else None]:
            start = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True)
            last = (done.stdout + done.stderr).strip().splitlines()[-1:] if done.returncode else ""
            at.put(name, done.returncode, f"{_verdict(not done.returncode)} {last}"[:200])
            at.put(f"{name}: time", time.perf_counter() - start, "s")


def _step(
    at: Stage,
    spec: ModelSpec,
    batch: Batch,
    *,
    compiled: bool = True,
    kernel: str = "sdpa",
    precision: str = "bf16",
    chunked: bool | None = None,
    again: Any = "none",
    narrow: bool = False,
    liger: bool = False,
    muon: bool = False,
) -> Callable[[], Any]:
    """Return the step of `archwright train`, with the batch in the CPU's memory."""
    model = build(spec, seed=0, device=at.device).use_kernel(kernel).checkpoint_activations(again)
    model.train().narrow_stream = narrow
    if chunked is None:
        limit = CUDA_LOGITS * total_memory("cuda") if at.cuda else WHOLE_LOGITS
        chunked = logit_bytes(model, len(batch.targets)) > limit
    if compiled:
        compile_parts(model, "block", whole_loss=not chunked)
    if liger:
        if missing := why_not_fusable(at.device.type):
            raise RuntimeError(f"liger needs {missing}")
        fuse(model, MachineSpec(loss="chunked" if chunked else "whole", precision="bf16"))
    optimizers = build_optimizers(model, Muon() if muon else AdamW())
    of_step = Precision(precision, at.device, model.head.d_out)
    batch = batch.map(Tensor.pin_memory) if at.cuda else batch
    return partial(
        train_step, model, batch, optimizers, lr_scale=1.0, precision=of_step, chunked=chunked
    )


def _batch(spec: ModelSpec, rows: int, length: int, *, documents: bool = False) -> Batch:
    assert spec.vocab_size != "auto", "specs of this file have a vocabulary"
    dice = torch.Generator().manual_seed(0)
    drawn = torch.randint(spec.vocab_size, (rows, length + 1), generator=dice)
    ids = torch.arange(length).expand(rows, -1) // (length // 2) if documents else None
    return Batch(Inputs(drawn[:, :-1].contiguous(), segment_ids=ids), drawn[:, 1:].contiguous())


def _verdict(passed: bool) -> str:
    return "pass" if passed else "FAIL"


STAGES: dict[str, Callable[[Stage], None]] = {
    stage.__name__: stage
    for stage in (machine, correct, syncs, compile, attention, loss, decode, commands)
} | {"train-124M": train, "train-1B": train}
START = time.perf_counter()
COMMIT = subprocess.run(
    ["git", "describe", "--always", "--dirty"], capture_output=True, text=True
).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results.jsonl"))
    args = parser.parse_args()
    if args.tiny:  # layers are traced as for a GPU, and no code is generated
        nn.Module.compile = partialmethod(nn.Module.compile, backend="eager")  # type: ignore
    STAGES[args.stage](Stage(args.stage, torch.device(args.device), args.tiny, args.out))


if __name__ == "__main__":
    main()
