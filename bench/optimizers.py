"""Time of an optimizer's step, and its share of a whole training step with it.

Run as `python bench/optimizers.py`. Muon moves the matrices inside; what AdamW then does for the rest is not in its
line. All is measured in turns in one process, in CPU time of one thread,
which other work on the machine disturbs little; medians.
"""

import statistics
import time
from collections.abc import Callable

import torch

from archwright.losses import cross_entropy
from archwright.model.build import build
from archwright.model.model import Decoder
from archwright.optim import Muon, clip_gradients, roles
from archwright.spec.read import load

MODELS = {
    "0.9M": (
        "dim=128",
        "num_layers=4",
        "attention.num_heads=2",
        "attention.num_kv_heads=1",
        "vocab_size=2048",
        "context_length=256",
    ),
    "3.4M": (
        "dim=192",
        "num_layers=6",
        "attention.num_heads=3",
        "attention.num_kv_heads=1",
        "vocab_size=4096",
        "context_length=256",
    ),
    "30M": (
        "dim=512",
        "num_layers=8",
        "attention.num_heads=8",
        "attention.num_kv_heads=2",
        "vocab_size=8192",
        "context_length=512",
    ),
}
BATCH = {"0.9M": 8, "3.4M": 16, "30M": 8}


def main() -> None:
    torch.set_float32_matmul_precision("medium")
    torch.set_num_threads(1)
    print(
        f"torch {torch.__version__}, milliseconds, and share of forward + backward + clipping + itself"
    )
    for name, assignments in MODELS.items():
        model = build(load("modern").override(*assignments))
        report(name, model, BATCH[name], rounds=5 if name == "30M" else 15)


def report(name: str, model: Decoder, batch_size: int, rounds: int) -> None:
    spec = model.spec
    tokens = torch.randint(spec.vocab_size, (batch_size, spec.context_length + 1))
    times = measure(contenders(model, tokens), rounds)
    base = times["forward + backward, bf16"] + times["clip_gradients"]
    size = sum(p.numel() for p in model.parameters()) / 1e6
    print(f"\n{name}: {size:.1f}M parameters, batch {batch_size} x {spec.context_length}")
    for label, seconds in times.items():
        share = f"{seconds / (base + seconds):7.1%}" if "AdamW" in label or "Muon" in label else ""
        print(f"  {label:<34} {seconds * 1e3:9.2f}  {share}".rstrip())


def contenders(model: Decoder, tokens: torch.Tensor) -> dict[str, Callable[[], object]]:
    everything = list(model.parameters())
    role_of = roles(model)
    inside = [p for n, p in model.named_parameters() if role_of[n] == "matrix"]

    def train() -> None:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(tokens[:, :-1]).logits
        cross_entropy(logits, tokens[:, 1:]).total.backward()

    return {
        "forward + backward, bf16": train,
        "clip_gradients": lambda: clip_gradients(everything, 1.0),
        "AdamW, one by one": torch.optim.AdamW(everything, lr=1e-6, foreach=False).step,
        "AdamW, foreach": torch.optim.AdamW(everything, lr=1e-6, foreach=True).step,
        "AdamW, fused": torch.optim.AdamW(everything, lr=1e-6, fused=True).step,
        "Muon of torch (inside)": torch.optim.Muon(inside, lr=1e-6).step,
        "Muon, jordan, 5 steps, bf16": Muon(inside, lr=1e-6, method="jordan", steps=5).step,
        "Muon, polar, 3 steps, bf16": Muon(inside, lr=1e-6).step,
        "Muon, polar, 2 steps, bf16": Muon(inside, lr=1e-6, steps=2).step,
        "Muon, polar, 3 steps, fp32": Muon(inside, lr=1e-6, dtype=torch.float32).step,
    }


def measure(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each, taken in turns so that all meet the same machine."""
    seconds: dict[str, list[float]] = {label: [] for label in functions}
    for i in range(rounds + 1):
        for label, function in functions.items():
            start = time.process_time()
            function()
            if i:
                seconds[label].append(time.process_time() - start)
    return {label: statistics.median(taken) for label, taken in seconds.items()}


if __name__ == "__main__":
    main()
