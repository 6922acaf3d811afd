"""How variants and runs are distinguished on a page: by colour, marker and dashes, and by names that fit."""

import textwrap
from collections.abc import Sequence
from html import escape
from itertools import count
from typing import Any, get_args

from archwright.reporting.document import Dash, Series, Symbol

COLORS = 8
SYMBOLS: tuple[Symbol, ...] = get_args(Symbol)
DASHES: tuple[Dash, ...] = get_args(Dash)
FEW = 4
"""So many variants leave room for more words about each."""
SHORT = 28
"""Letters of a name in a hover label or a saved picture."""
LINE = 22
"""Letters of a line beside an axis."""


def series_of(names: Sequence[str], group: str = "variant") -> dict[str, Series]:
    """Return the style of each curve: sixteen differ even without colour. The legend hides one by its group."""
    return {
        name: Series(
            label=name,
            group=f"{group}-{i}",
            color=f"series-{i % COLORS}",
            symbol=SYMBOLS[i % 4],
            dash=DASHES[i // 4 % 4],
        )
        for i, name in enumerate(names)
    }


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return names that fit and still differ: long ones lose their middle."""
    short: dict[str, str] = {}
    for name in names:
        candidates = (shortened(name, SHORT, f" ({i})" if i > 1 else "") for i in count(1))
        short[name] = next(text for text in candidates if text not in short.values())
    return short


def shortened(name: str, letters: int = SHORT, ending: str = "") -> str:
    """Return a name with its middle left out where it is too long, and its ending."""
    if len(name) + len(ending) <= letters:
        return name + ending
    kept = letters - len(ending) - 1
    return f"{name[: kept - kept // 2]}…{name[len(name) - kept // 2 :]}{ending}"


def plotly_text(text: str) -> str:
    """Return text as plotly shows it letter by letter, since it reads tags and templates."""
    return escape(text, quote=False).replace("%{", "%\N{ZERO WIDTH SPACE}{")


def wrapped(text: str, letters: int = LINE) -> str:
    """Return text in lines for plotly."""
    return "<br>".join(map(plotly_text, textwrap.wrap(text, letters) or [text]))


def trace(series: Series, name: str, **given: Any) -> dict[str, Any]:
    """Return a scatter trace in a series' style; what is given replaces or adds."""
    color = f"${series.color}"
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plotly_text(name),
        "legendgroup": series.group,
        "line": {"width": 2, "color": color, "dash": series.dash},
        "marker": {"size": 7, "color": color, "symbol": series.symbol},
        **given,
    }
