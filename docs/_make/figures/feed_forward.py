"""Figures of the page on feed-forwards."""

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import archwright as aw
from archwright.model.model import Decoder
from archwright.parts.feedforward import ACTIVATIONS
from archwright.planning.cost import forward_flops_by_part
from archwright.spec import feedforward

KINDS = {
    "ReLU": feedforward.ReLU(),
    "GELU": feedforward.GELU(),
    "SiLU": feedforward.SiLU(),
}
MODEL = "gpt-2-xl"
PARTS = {
    "feed-forward": "feed-forward",
    "attention": "attention, projections",
    "attention between tokens": "attention, scores and sums",
    "head": "head",
}
SHORT, LONG = 256, 65_536


def activations() -> Figure:
    """Values and slopes of three activations."""
    figure, (left, right) = plt.subplots(1, 2)
    for label, kind in KINDS.items():
        x = torch.linspace(-4, 3, 141, requires_grad=True)
        y = ACTIVATIONS.make(kind)(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
        points = x.detach().numpy()
        left.plot(points, y.detach().numpy(), label=label)
        right.plot(points, slope.numpy(), label=label)
    left.set(xlabel="x", ylabel="f(x)", ylim=(-0.5, 2.5))
    right.set(xlabel="x", ylabel="slope of f", ylim=(-0.3, 1.3))
    left.legend()
    return figure


def flops_shares() -> Figure:
    """Share of each part in the forward FLOPs of a model, by the length of its text."""
    spec = aw.load(MODEL).override(f"context_length={LONG}")
    model = aw.build(spec, device="meta")
    assert isinstance(model, Decoder)
    lengths = [int(n) for n in np.geomspace(SHORT, LONG, 9)]
    by_length = [forward_flops_by_part(model, n) for n in lengths]
    totals = [sum(flops.values()) for flops in by_length]
    figure, axes = plt.subplots()
    for part, label in PARTS.items():
        shares = [100 * f[part] / total for f, total in zip(by_length, totals, strict=True)]
        axes.plot(lengths, shares, label=label)
    axes.set_xscale("log", base=2)
    axes.axvline(4 * spec.dim, color="#808080", linestyle=":", linewidth=1)
    axes.annotate("4 d", (4 * spec.dim * 1.08, 72))
    axes.set(xlabel="tokens of the text", ylabel="% of forward FLOPs", ylim=(0, 80))
    axes.set_xticks([2**n for n in range(8, 17, 2)], [f"{2**n:,}" for n in range(8, 17, 2)])
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure
