"""Notebooks: detection, output of cells, and embedded pages.

Jupyter is not required: IPython is used only if it is already imported.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

HEIGHT = 800
"""Height of a page in a notebook, in pixels."""


def in_notebook() -> bool:
    """True if output is displayed below a notebook cell."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module else None
    return getattr(shell, "kernel", None) is not None


class Cell:
    """Output area below a notebook cell; each `show` replaces its content."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, html: str) -> None:
        """Replace the content with HTML."""
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(html), display_id=True)
        else:
            self._handle.update(HTML(html))


class Report(os.PathLike[str]):
    """Path of a run's or study's page; notebooks display the page.

    With `inline`, a notebook stores the page (several MB) instead of a link."""

    def __init__(self, path: Path, *, inline: bool = False) -> None:
        self.path, self.inline = path, inline

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Report({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return an iframe of the page, with a link unless `inline`."""
        frame = f'<iframe {{}} width="100%" height="{HEIGHT}" style="border: 0"></iframe>'
        if self.inline:
            return frame.format(f'srcdoc="{escape(self.path.read_text("utf-8"))}"')
        # Notebooks resolve links relative to their folder, the kernel's working directory.
        href = escape(quote(Path(os.path.relpath(self.path)).as_posix()))
        link = f'<a href="{href}" target="_blank">{escape(str(self))}</a>'
        hint = "If no page appears, <code>report(inline=True)</code> stores it in the notebook."
        return f"<p>{link} {hint}</p>" + frame.format(f'src="{href}"')


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a caption and, if there are rows, a table as HTML. Texts are escaped."""
    names = "".join(f'<th style="text-align: left">{escape(name)}</th>' for name in head)
    lines = [_row(cells) for cells in rows]
    table = f"<table><tr>{names}</tr>{''.join(lines)}</table>" if lines else ""
    return f"<div><p>{escape(caption)}</p>{table}</div>"


def _row(cells: Sequence[str]) -> str:
    inner = "".join(f'<td style="text-align: left">{escape(cell)}</td>' for cell in cells)
    return f"<tr>{inner}</tr>"
