"""Small numeric examples of terms of the field, computed on demand."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from archwright.format import count
from archwright.inspection.explain import Numbers, kv_heads, small
from archwright.losses import cross_entropy
from archwright.model import build
from archwright.optim import clip_gradients, learning_rate
from archwright.spec.read import load
from archwright.spec.run_spec import RunSpec
from archwright.text.bpe_training import train_bpe
from archwright.text.tokenizer import Tokenizer

SHAPES = (
    "gpt-2-xl",
    "gpt-3-175b",
    "t5-11b",
    "palm-540b",
    "llama-2-70b",
    "llama-3-8b",
    "gemma-3-27b",
)
"""Models with different aspect ratios."""
LYRICS = "low low low low low lower lower newest newest newest widest widest"
"""Text of the BPE example (Sennrich et al., 2016, shortened)."""


def perplexity() -> Numbers:
    """Tabulate perplexity and bits of a model with equal logits for N tokens."""
    target = torch.zeros(1, dtype=torch.long)
    losses = [float(cross_entropy(torch.zeros(1, n), target).total) for n in (1, 2, 10, 100, 50257)]
    rows = [
        (f"{nats:.4g}", f"{nats / math.log(2):.4g}", f"{math.exp(nats):,.5g}") for nats in losses
    ]
    return Numbers(
        "e^nats = 2^bits, the number of equally likely tokens with the same loss:",
        [("nats per token", "bits per token", "perplexity"), *rows],
    )


def intensity() -> Numbers:
    """Tabulate FLOPs per element moved of an attention layer, by the formulas of Shazeer (2019)."""
    d, h = 4096, 32
    rows = [
        (
            f"{n:,}",
            *(f"{1 / (1 / (b * n) + 1 / d + h * n / d**2):.3g}" for b in (1, 32)),
            *(f"{1 / (n / d + 1 / b):.3g}" for b in (1, 32)),
        )
        for n in (128, 1024, 8192)
    ]
    return Numbers(
        "Multi-head attention of width d = 4,096 and h = 32 heads, n tokens, b sequences: whole sequences "
        "1 / (1/(bn) + 1/d + hn/d^2), one token with a KV cache 1 / (n/d + 1/b). GPUs need more than a hundred:",
        [("n", "whole, b = 1", "whole, b = 32", "cached, b = 1", "cached, b = 32"), *rows],
    )


def z_loss() -> Numbers:
    """Tabulate the z-loss of equal logits."""
    weight, vocabulary = 1e-4, 4096
    rows = []
    for value in (-math.log(vocabulary), 0.0, 10.0, 100.0):
        logits = torch.full((1, vocabulary), value)
        loss = cross_entropy(logits, torch.zeros(1, dtype=torch.long), z_loss=weight)
        log_z = float(torch.logsumexp(logits, -1))
        rows.append((f"{value:.4g}", f"{log_z:.4g}", f"{float(loss.z_term):.4g}"))
    return Numbers(
        "1e-4 (log Z)^2 of 4,096 equal logits; cross-entropy does not depend on their level:",
        [("each logit", "log Z", "z-loss"), *rows],
    )


def soft_cap() -> Numbers:
    """Tabulate a cap of 50 and its slope."""
    x = torch.tensor([1.0, 10, 50, 100, 200, 1000], dtype=torch.float64)
    capped = 50 * torch.tanh(x / 50)
    return Numbers(
        "50 tanh(x / 50), and its slope, by which the gradient is multiplied:",
        [
            ("x", *(f"{v:.4g}" for v in x.tolist())),
            ("capped", *(f"{v:.4g}" for v in capped.tolist())),
            ("slope", *(f"{v:.2g}" for v in torch.cosh(x / 50).pow(-2).tolist())),
        ],
    )


def hidden_width() -> Numbers:
    """Count feed-forward parameters by kind and width."""
    rows = []
    for dim in (512, 1024, 4096):
        row = [f"{dim:,}"]
        for kind in ("gelu", "swiglu"):
            model = build(small(f"feedforward.kind={kind}", f"dim={dim}"), device="meta")
            layer: Any = model.layers[0]
            shapes = [p.shape for p in layer.branch("feedforward").parameters()]
            row += [f"{max(map(max, shapes)):,}", count(sum(map(math.prod, shapes)))]
        rows.append(tuple(row))
    return Numbers(
        "4 d without a gate, 8/3 d with one, rounded up to a multiple of 64: about 8 d^2 parameters each:",
        [("d", "d_ff, gelu", "parameters", "d_ff, swiglu", "parameters"), *rows],
    )


def aspect_ratio() -> Numbers:
    """Tabulate width over depth of published models."""
    specs = {name: load(name).resolved() for name in SHAPES}
    rows = [
        (n, f"{s.dim:,}", str(s.num_layers), f"{s.dim / s.num_layers:.0f}")
        for n, s in specs.items()
    ]
    return Numbers("Published models:", [("model", "width", "layers", "width / layers"), *rows])


def warm_up() -> Numbers:
    """Tabulate a warm-up of ten steps."""
    steps = (0, 1, 4, 9, 10, 100, 500, 999)
    schedule = RunSpec(model=small()).override("schedule.warmup=10").schedule
    rates = [learning_rate(schedule, step, 1000) for step in steps]
    return Numbers(
        "Share of the peak learning rate, warm-up of 10 steps, then a cosine to step 1,000:",
        [("step", *map(str, steps)), ("rate", *(f"{rate:.4g}" for rate in rates))],
    )


def clipping() -> Numbers:
    """Clip the gradient (3, 4) to a few norms."""
    rows = []
    for limit in (10.0, 5.0, 1.0, 0.5):
        weight = nn.Parameter(torch.zeros(2))
        weight.grad = torch.tensor([3.0, 4.0])
        norm = clip_gradients([weight], limit)
        rows.append(
            (f"{limit:g}", f"{float(norm):g}", ", ".join(f"{g:.4g}" for g in weight.grad.tolist()))
        )
    return Numbers(
        "The gradient (3, 4), multiplied by min(1, limit / norm):",
        [("limit", "norm before", "gradient after"), *rows],
    )


def byte_pairs() -> Numbers:
    """Train BPE on a few words, and split one of them after some merges."""
    rows = []
    for merges in (0, 2, 4, 8):
        tokenizer = Tokenizer(train_bpe([LYRICS], 257 + merges, ["<|endoftext|>"]), "<|endoftext|>")
        pieces = [
            tokenizer.vocab[i].decode() for i in tokenizer.encode("low lowest newest").tolist()
        ]
        learned = " ".join((a + b).decode() for a, b in tokenizer.merges[-2:]) if merges else ""
        rows.append((str(merges), learned, "|".join(pieces)))
    return Numbers(
        f'Trained on "{LYRICS}":',
        [("merges", "last two", "low lowest newest"), *rows],
    )


TERMS: dict[str, Callable[[], Numbers]] = {
    "perplexity": perplexity,
    "arithmetic intensity": intensity,
    "attention.num_kv_heads": kv_heads,
    "kv cache": kv_heads,
    "z_loss": z_loss,
    "attention.softcap": soft_cap,
    "feedforward.hidden_dim": hidden_width,
    "aspect ratio": aspect_ratio,
    "schedule.warmup": warm_up,
    "max_grad_norm": clipping,
    "BPE": byte_pairs,
}
"""Functions that return an example table, by option or by the first word of a glossary entry."""
