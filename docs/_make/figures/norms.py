"""Figures of docs/course/norms.md."""

import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import archwright as aw
from archwright.losses import cross_entropy

LAYERS, SEEDS = 12, 5
SMALL = (
    "dim=64",
    f"num_layers={LAYERS}",
    "attention.num_heads=4",
    "attention.num_kv_heads=4",
    "vocab_size=256",
)


def norm_placement() -> Figure:
    """Draw the RMS of the stream and the gradient norm of each layer, at initial values."""
    figure, (stream, gradient) = plt.subplots(1, 2)
    for kind in ("pre", "post", "sandwich"):
        passes = [_first_pass(kind, seed) for seed in range(SEEDS)]
        sizes = torch.tensor([rms for rms, _ in passes])
        norms = torch.tensor([norm for _, norm in passes])
        stream.plot(range(LAYERS + 1), sizes.mean(0), marker=".", label=kind)
        gradient.plot(range(1, LAYERS + 1), norms.mean(0), marker=".", label=kind)
        low, high = norms.amin(0), norms.amax(0)
        gradient.fill_between(range(1, LAYERS + 1), low, high, alpha=0.15)
    stream.set(xlabel="after layer", ylabel="RMS of the stream", ylim=(0, None))
    gradient.set(xlabel="layer", ylabel="gradient norm", ylim=(0, None))
    for axes in (stream, gradient):
        axes.set_xticks(range(0, LAYERS + 1, 2))
    stream.legend()
    return figure


def _first_pass(kind: str, seed: int) -> tuple[list[float], list[float]]:
    spec = aw.load("modern").override(*SMALL, f"residual.kind={kind}")
    model = aw.build(spec, seed=seed)
    tokens = torch.randint(256, (4, 65), generator=torch.Generator().manual_seed(seed))
    with aw.Probes(model) as probes:
        loss = cross_entropy(model(tokens[:, :-1]).logits, tokens[:, 1:])
        loss.total.backward()
    norms = probes.values["gradient_norm"]
    rms = [*probes.values["residual_rms"].values()]
    return rms, [norms[f"layers.{i}"] for i in range(LAYERS)]
