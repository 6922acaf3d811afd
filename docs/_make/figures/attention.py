"""Figures of the page on attention: bytes of caches, and the roofline of a model."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

import archwright as aw
from archwright.model.model import Decoder
from archwright.planning.memory import cache_bytes_per_token
from archwright.planning.roofline import Phase, operators, ridge
from archwright.spec.hardware import load_hardware

KINDS = {
    "MHA": ("gpt-3-175b", "llama-65b", "pythia-12b", "gpt-2-xl", "gemma-7b"),
    "GQA": ("gemma-3-27b", "llama-2-70b", "qwen-3-32b", "llama-3-8b", "mistral-7b"),
    "MQA": ("palm-540b", "gemma-2b"),
    "MLA": ("deepseek-v3", "deepseek-v2-lite"),
}
PARTS = {
    "attention": "projections",
    "feed-forward": "feed-forward",
    "attention between tokens": "scores and sums",
}
MARKS = ("o", "s", "^")


def _model(name: str) -> Decoder:
    return aw.build(aw.load(name), device="meta")


def cache_per_token() -> Figure:
    """Bytes of cache per token of published models, in 16 bits."""
    figure, axes = plt.subplots(figsize=(7.2, 4.2))
    names: list[str] = []
    for kind, models in KINDS.items():
        sizes = sorted((cache_bytes_per_token(_model(name)), name) for name in models)[::-1]
        places = range(len(names), len(names) + len(sizes))
        axes.barh(places, [size / 1e3 for size, _ in sizes], label=kind)
        for place, (size, _) in zip(places, sizes, strict=True):
            axes.annotate(
                f"{size / 1e3:,.0f}",
                (size / 1e3, place),
                (4, 0),
                textcoords="offset points",
                va="center",
                size=9,
            )
        names += [name for _, name in sizes]
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xscale="log", xlim=(10, 10_000), xlabel="kB of cache per token, 16 bits")
    axes.grid(visible=False, axis="y")
    axes.legend(loc="lower right")
    return figure


def roofline() -> Figure:
    """Attainable FLOP/s of the parts of Llama 3 8B on an H100, at 8,192 tokens."""
    figure, axes = plt.subplots(figsize=(7.2, 3.8))
    hardware, model = load_hardware("h100"), _model("llama-3-8b")
    peak, knee = hardware.peak("bf16"), ridge(hardware, "bf16")
    axes.plot(
        [0.3, knee, 10_000], [0.3 * hardware.memory_bandwidth / 1e12, peak / 1e12, peak / 1e12], "k"
    )
    axes.lines[0].set_color("#808080")
    passes: tuple[tuple[Phase, int], ...] = (
        ("prefill", 1),
        ("decode", 1),
        ("decode", 64),
        ("decode", 512),
    )
    for number, (phase, texts) in enumerate(passes):
        found = {o.name: o for o in operators(model, phase, texts=texts, length=8192)}
        for mark, name in zip(MARKS, PARTS, strict=True):
            part = found[name]
            axes.plot(
                part.intensity,
                part.attainable(hardware, "bf16") / 1e12,
                mark,
                color=f"C{number}",
                alpha=0.8,
            )
        texts_of = "one text" if texts == 1 else f"{texts} texts"
        axes.plot([], [], "o", color=f"C{number}", label=f"{phase}, {texts_of}")
    for mark, title in zip(MARKS, PARTS.values(), strict=True):
        axes.plot([], [], mark, color="#808080", fillstyle="none", label=title)
    axes.annotate(
        f"ridge: {knee:.0f}",
        (knee, peak / 1e12),
        (-8, 4),
        textcoords="offset points",
        ha="right",
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(0.3, 10_000),
        ylim=(0.8, 2000),
        xlabel="FLOPs per byte",
        ylabel="attainable TFLOP/s",
    )
    axes.legend(loc="lower right", ncols=2, fontsize=9)
    return figure
