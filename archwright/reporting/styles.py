"""Styles of variants and runs on a page: colours, markers, dashes and short names."""

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
"""Maximum number of variants with detailed labels."""
SHORT = 28
"""Maximum characters of a name in a hover label or saved chart."""
LINE = 22
"""Maximum characters of a line next to an axis."""


def series_of(names: Sequence[str], group: str = "variant") -> dict[str, Series]:
    """Return a style for each name; sixteen styles differ even without colour. `group` prefixes legend groups."""
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
    """Return unique short names, without the middle of long names."""
    short: dict[str, str] = {}
    for name in names:
        candidates = (shortened(name, SHORT, f" ({i})" if i > 1 else "") for i in count(1))
        short[name] = next(text for text in candidates if text not in short.values())
    return short


def shortened(name: str, letters: int = SHORT, ending: str = "") -> str:
    """Return a name with an ending; … replaces the middle of a long name."""
    if len(name) + len(ending) <= letters:
        return name + ending
    room = letters - len(ending) - 1
    return f"{name[: room - room // 2]}…{name[len(name) - room // 2 :]}{ending}"


def plotly_text(text: str) -> str:
    """Escape tags and templates, so that plotly shows the text literally."""
    return escape(text, quote=False).replace("%{", "%\N{ZERO WIDTH SPACE}{")


def wrapped(text: str, letters: int = LINE) -> str:
    """Return escaped text for plotly, wrapped into lines."""
    return "<br>".join(map(plotly_text, textwrap.wrap(text, letters) or [text]))


def trace(series: Series, name: str, **overrides: Any) -> dict[str, Any]:
    """Return a scatter trace in a series' style, updated with `overrides`."""
    color = f"${series.color}"
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plotly_text(name),
        "legendgroup": series.group,
        "line": {"width": 2, "color": color, "dash": series.dash},
        "marker": {"size": 7, "color": color, "symbol": series.symbol},
        **overrides,
    }
