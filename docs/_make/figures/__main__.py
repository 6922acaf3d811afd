"""Draw the figures of all pages, or of those named."""

import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from docs._make import figures

FOLDER = Path(__file__).parents[2] / "course" / "figures"
GREY = "#808080"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "archwright",
    "font.family": "sans-serif",
    "font.size": 10,
    "figure.figsize": (7.2, 3.2),
    "figure.constrained_layout.use": True,
    "savefig.transparent": True,  # readable on light and on dark pages
    "axes.prop_cycle": cycler(
        color=["#3b82f6", "#f97316", "#10b981", "#a855f7", "#ef4444", "#eab308"]
    ),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    **dict.fromkeys(
        (
            "text.color",
            "axes.labelcolor",
            "axes.edgecolor",
            "xtick.color",
            "ytick.color",
            "grid.color",
        ),
        GREY,
    ),
}


def drawings(pages: list[str]) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """Yield name and function of each figure."""
    for module in pkgutil.iter_modules(figures.__path__):
        if module.name.startswith("_") or (pages and module.name not in pages):
            continue
        found = import_module(f"docs._make.figures.{module.name}")
        for name, function in inspect.getmembers(found, inspect.isfunction):
            if function.__module__ == found.__name__ and not name.startswith("_"):
                yield name, function


def main(pages: list[str]) -> None:
    """Write figures as SVG."""
    mpl.use("agg")
    mpl.rcParams.update(STYLE)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in drawings(pages):
        draw().savefig(FOLDER / f"{name}.svg", metadata={"Date": None, "Creator": None})
        plt.close("all")
        print(f"{name}.svg", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
