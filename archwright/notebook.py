"""Notebooks: whether this process is one, what a cell shows, and pages inside of it.

Nothing here needs Jupyter: IPython is asked for only where it is loaded already.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

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
    """The page of a run or of a study: notebooks show it, and everywhere else it is the path of its file.

    With `inline`, a notebook stores the whole page, several MB, and not a link."""

    def __init__(self, path: Path, *, inline: bool = False) -> None:
        self.path, self.inline = path, inline

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Report({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return a frame that shows the file, and a link to it; or the page inside the frame."""
        frame = f'<iframe {{}} width="100%" height="{HEIGHT}" style="border: 0"></iframe>'
        if self.inline:
            return frame.format(f'srcdoc="{escape(self.path.read_text("utf-8"))}"')
        # Notebooks resolve links from their own folder, in which the kernel works.
        href = escape(quote(Path(os.path.relpath(self.path)).as_posix()))
        link = f'<a href="{href}" target="_blank">{escape(str(self))}</a>'
        more = "If no page appears, <code>report(inline=True)</code> stores it in the notebook."
        return f"<p>{link} {more}</p>" + frame.format(f'src="{href}"')


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table below a caption; texts are escaped."""
    names = "".join(f'<th style="text-align: left">{escape(name)}</th>' for name in head)
    lines = [_row(cells) for cells in rows]
    table = f"<table><tr>{names}</tr>{''.join(lines)}</table>" if lines else ""
    return f"<div><p>{escape(caption)}</p>{table}</div>"


def _row(cells: Sequence[str]) -> str:
    inner = "".join(f'<td style="text-align: left">{escape(cell)}</td>' for cell in cells)
    return f"<tr>{inner}</tr>"
