"""Figures of the page on sparse attention."""

import torch
from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from archwright.classic.parts.lsh import LSHAttention
from archwright.classic.spec import lsh
from archwright.classic.spec.longformer import Longformer
from archwright.parts.context import Context
from archwright.parts.init import GPT2, initialise
from archwright.parts.masks import pairs, pattern_of, visible_block
from archwright.spec import init, masks

LENGTH = 32


def sparse_masks() -> Figure:
    """Visible keys of each query under six patterns."""
    panels = {
        "causal": _mask(masks.Causal()),
        "window, 8": _mask(masks.Window(size=8)),
        "strided, 6": _mask(masks.Strided(stride=6)),
        "fixed, 6": _mask(masks.Fixed(stride=6, num_summary=1)),
        "Longformer, 4 + 1 global": _mask(Longformer(radius=4, num_global=1)),
        "LSH, chunks of 4, causal": _hashed(),
    }
    figure, axes = plt.subplots(2, 3, figsize=(7.2, 5.0), sharex=True, sharey=True)
    for panel, (name, seen) in zip(axes.flat, panels.items(), strict=True):
        share = int(seen.sum()) / LENGTH**2
        cells = seen.float().where(seen, torch.nan).numpy()
        panel.imshow(
            cells, cmap=ListedColormap(["#3b82f6"]), interpolation="nearest", rasterized=True
        )
        panel.set_title(f"{name}: {share:.0%}", fontsize=10)
        panel.grid(visible=False)
        panel.set_xticks([0, 15, 31])
        panel.set_yticks([0, 15, 31])
        for side in ("top", "right"):
            panel.spines[side].set_visible(True)
    figure.supxlabel("key", color="#808080", fontsize=10)
    figure.supylabel("query", color="#808080", fontsize=10)
    return figure


def sparse_pairs() -> Figure:
    """Evaluated pairs by length."""
    figure, axes = plt.subplots()
    lengths = [2**k for k in range(9, 18)]
    counts = {
        "causal": [pairs(pattern_of(masks.Causal(), 1), n) for n in lengths],
        "LSH, 2 rounds, chunks of 64": [256.0 * n for n in lengths],
        "Longformer, radius 256": [
            pairs(pattern_of(Longformer(radius=256), 1), n) for n in lengths
        ],
        "fixed, √n, 8 summaries": [
            pairs(pattern_of(masks.Fixed(stride=round(n**0.5), num_summary=8), 1), n)
            for n in lengths
        ],
        "strided, √n": [
            pairs(pattern_of(masks.Strided(stride=round(n**0.5)), 1), n) for n in lengths
        ],
        "window, 128": [pairs(pattern_of(masks.Window(size=128), 1), n) for n in lengths],
    }
    for name, number in counts.items():
        axes.loglog(
            lengths, [c / n for c, n in zip(number, lengths, strict=True)], base=2, label=name
        )
    axes.set(xlabel="tokens", ylabel="pairs per token")
    axes.legend(fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _mask(mask: masks.Mask) -> Tensor:
    return visible_block(pattern_of(mask, 1), 0, LENGTH, 0, LENGTH, LENGTH)[0]


def _hashed() -> Tensor:
    """Return the pairs that one round of LSH attention with a causal mask evaluates, for random queries."""
    choice = lsh.LSHAttention.model_validate({"num_heads": 1, "num_buckets": 16, "chunk_size": 4})
    part = LSHAttention(choice, 32)
    initialise(part, GPT2(init.GPT2(embedding_std=0.02), num_layers=1, dim=32), seed=0)
    # Pairs that carry a gradient from values to outputs are evaluated.
    x = torch.randn(1, LENGTH, 32, generator=torch.Generator().manual_seed(0))
    values = torch.randn(1, LENGTH, 32).requires_grad_()
    context = Context.alone(x)
    with torch.no_grad():
        projected = part.query_key(x)
    out = part(x, context, projected=[projected, values])
    rows = [
        torch.autograd.grad(out[0, i].sum(), values, retain_graph=True)[0] for i in range(LENGTH)
    ]
    return torch.stack([row[0].abs().sum(-1) > 0 for row in rows])
