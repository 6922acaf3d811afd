"""Figures of the page on the shape of models."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from archwright.cli.listings import listing

ABOVE, BELOW = (4, 3), (4, -9)
"""Places of names, in points."""
NAMED = {
    "gpt-2-xl": ABOVE,
    "t5-11b": ABOVE,
    "gpt-3-175b": BELOW,
    "gopher-280b": ABOVE,
    "palm-540b": ABOVE,
    "llama-3-405b": ABOVE,
    "deepseek-v3": BELOW,
    "qwen-3-0.6b": ABOVE,
    "trinity-nano": ABOVE,
}
"""Models whose points have names."""
VOCABULARIES = {
    "gpt-2": ABOVE,
    "llama-65b": BELOW,
    "llama-3-8b": BELOW,
    "qwen-2.5-7b": ABOVE,
    "bloom-176b": ABOVE,
    "gemma-3-27b": ABOVE,
}
SMALL = 4096
"""Vocabularies up to this size are of bytes or of this package's own small models."""


def aspect_ratios() -> Figure:
    """Width over depth of published models, by their parameters."""
    rows = [row for row in listing("models")["rows"] if row["dim_over_layers"]]
    figure, axes = plt.subplots(figsize=(7.2, 3.6))
    for is_mixture, label in ((False, "dense"), (True, "experts")):
        chosen = [row for row in rows if bool(row["experts"]) == is_mixture]
        sizes = [int(row["parameters"]) for row in chosen]
        axes.scatter(sizes, [float(row["dim_over_layers"]) for row in chosen], s=12, label=label)
    for row in rows:
        if row["model"] in NAMED:
            point = int(row["parameters"]), float(row["dim_over_layers"])
            place = NAMED[row["model"]]
            axes.annotate(row["model"], point, xytext=place, textcoords="offset points", size=7)
    axes.axhline(128, color="#808080", linestyle=":", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="parameters", ylabel="d / layers")
    axes.set_yticks([16, 32, 64, 128, 256], ["16", "32", "64", "128", "256"])
    axes.minorticks_off()
    axes.legend(loc="upper left")
    return figure


def vocabularies() -> Figure:
    """Vocabulary sizes of published models by year, with the median."""
    rows = [row for row in listing("models")["rows"] if row["vocabulary"]]
    rows = [row for row in rows if int(row["vocabulary"]) > SMALL]
    years = sorted({int(row["year"]) for row in rows})
    figure, axes = plt.subplots()
    spread = np.random.default_rng(0).uniform(-0.25, 0.25, len(rows))
    sizes = [int(row["vocabulary"]) for row in rows]
    positions = [int(row["year"]) + x for row, x in zip(rows, spread, strict=True)]
    axes.scatter(positions, sizes, s=8, alpha=0.6)
    medians = [
        np.median([int(row["vocabulary"]) for row in rows if int(row["year"]) == year])
        for year in years
    ]
    axes.step(years, medians, where="mid", color="#f97316", label="median")
    for row, point in zip(rows, zip(positions, sizes, strict=True), strict=True):
        if row["model"] in VOCABULARIES:
            place = VOCABULARIES[row["model"]]
            axes.annotate(row["model"], point, xytext=place, textcoords="offset points", size=7)
    axes.set(xlabel="year", ylabel="vocabulary", yscale="log")
    axes.set_yticks([2**n * 1000 for n in range(5, 9)])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:,.0f}k"))
    axes.minorticks_off()
    axes.set_xticks(years)
    axes.legend(loc="lower right")
    return figure
