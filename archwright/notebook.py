"""Notebooks: whether this process is one, what a cell shows, and pages inside of it.

Nothing here needs Jupyter: IPython is asked for only where it is loaded already.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

HEIGHT = 800
"""Of a page inside a notebook, in pixels."""


def in_notebook() -> bool:
    """Tell whether what is displayed appears below the cell of a notebook."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module else None
    return getattr(shell, "kernel", None) is not None


class Cell:
    """A place below a notebook's cell; what it shows is replaced by what it is given next."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, html: str) -> None:
        """Show HTML there."""
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(html), display_id=True)
        else:
            self._handle.update(HTML(html))


class Report(os.PathLike[str]):
    """The page of a run or of a study: notebooks show it, and everywhere else it is the path of its file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Report({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return the page inside a frame of its own, as its styles and scripts are not the notebook's."""
        page = escape(self.path.read_text("utf-8"))
        return f'<iframe srcdoc="{page}" width="100%" height="{HEIGHT}" style="border: 0"></iframe>'


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table below a caption; texts are escaped."""
    names = "".join(f'<th style="text-align: left">{escape(name)}</th>' for name in head)
    lines = [_row(cells) for cells in rows]
    table = f"<table><tr>{names}</tr>{''.join(lines)}</table>" if lines else ""
    return f"<div><p>{escape(caption)}</p>{table}</div>"


def _row(cells: Sequence[str]) -> str:
    inner = "".join(f'<td style="text-align: left">{escape(cell)}</td>' for cell in cells)
    return f"<tr>{inner}</tr>"
