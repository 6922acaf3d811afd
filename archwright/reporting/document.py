"""A page of sections: plain data in, one self-contained HTML file out.

A section has a title and blocks; blocks contain only plain text and numbers. Only the template in `look/` writes HTML,
and it escapes all values. The report of a run and the comparison of several runs are both a `Page`.
"""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from archwright.files import atomic_write, check_replaceable

Json = Any  # values for json.dumps, and numpy arrays
Symbol = Literal["circle", "square", "diamond", "triangle-up"]
Dash = Literal["solid", "dash", "dot", "dashdot"]

HEADLINE_WORDS = 12
"""Maximum number of words of a page's headline."""
MADE_BY = "Made by archwright"
"""Start of the footer of a page."""
SMOOTHING = (0.0, 0.9, 0.97, 0.99)
"""Selectable weights of past steps in an exponential moving average; 0 is no smoothing."""


@dataclass(frozen=True)
class Axis:
    """Horizontal axis of curves, with a button on the axis switch."""

    column: str
    """Column of `along` in a trace."""
    label: str
    title: str
    hover: str
    """Heading of a hover label, as a plotly template: `%{x:.4s} tokens`."""
    divide: float = 1.0
    """Divisor of the recorded values, such as 60 for seconds shown as minutes."""


@dataclass(frozen=True)
class Chart:
    """A plotly figure.

    Keys of a trace in addition to plotly's:
        along: Table of columns instead of `x`; the trace follows the page's axis switch.
        smoothing: Weight of a smoothed curve, shown if that weight is selected.
        raw: True for the unsmoothed curve, which is faint next to a smoothed curve.
        decades: Colour a heat map by the logarithm of `z`. Hover labels read (value, step) from `customdata`.

    A `Key` shows and hides traces by `legendgroup`. The colour `$name` is `--name` of `look/page.css`, in light and
    dark; `"$shades"` is the colour scale of heat maps.
    """

    kind: ClassVar[str] = "chart"
    name: str
    """Unique name in the page, and stem of saved files."""
    title: str
    summary: str
    """Description for screen readers, one sentence."""
    traces: Sequence[Mapping[str, Json]]
    layout: Mapping[str, Json] = field(default_factory=dict)
    marks: Sequence[Mapping[str, Json]] = ()
    """Vertical lines on the switched axis: `{"along": {column: value}, "text": ...}`."""
    unit: str = ""
    """Title of the vertical axis."""
    note: str = ""
    full_width: bool = False
    height: float | None = None
    """Height in rem; None is the default height."""
    saved: Mapping[str, Sequence[Json]] = field(default_factory=dict)
    """Columns of the CSV file, if they differ from the traces."""

    @property
    def follows(self) -> bool:
        """True if the chart follows the page's axis switch."""
        return any("along" in trace for trace in self.traces)

    @property
    def is_curves(self) -> bool:
        """True if the chart follows the axis switch and is not a heat map."""
        return self.follows and not any("z" in trace for trace in self.traces)

    @property
    def smooths(self) -> bool:
        """True if the chart has smoothed curves."""
        return any("smoothing" in trace for trace in self.traces)

    @property
    def takes_logarithm(self) -> bool:
        """True if the vertical axis can be logarithmic: no value is negative."""
        if not self.is_curves:
            return False
        arrays = [np.asarray(trace["y"], dtype=np.float64).ravel() for trace in self.traces]
        values = np.concatenate(arrays)
        return bool((values > 0).any() and not (values < 0).any())

    def data(self) -> dict[str, Json]:
        """Return the input of the page's script as JSON values."""
        names = ("name", "title", "unit", "follows", "traces", "layout", "marks", "saved")
        fields = {name: _plain(getattr(self, name)) for name in names}
        return fields | {"takesLogarithm": self.takes_logarithm}


@dataclass(frozen=True)
class Series:
    """Style of related traces: colour, marker and dashes."""

    label: str
    group: str
    """`legendgroup` of the traces."""
    color: str
    """Colour of `look/page.css`, such as `series-1`."""
    symbol: Symbol = "circle"
    dash: Dash = "solid"


@dataclass(frozen=True)
class Key:
    """Legend that hides and shows series in all charts of the page."""

    kind: ClassVar[str] = "key"
    series: Sequence[Series]


@dataclass(frozen=True)
class Fact:
    """A labelled value."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Facts:
    """Groups of labelled values, side by side if there is space."""

    kind: ClassVar[str] = "facts"
    groups: Mapping[str, Sequence[Fact]]


@dataclass(frozen=True)
class Bar:
    """A bar: label, length, and value as text."""

    label: str
    value: float
    text: str
    strong: bool = False


@dataclass(frozen=True)
class Bars:
    """Bar chart from zero."""

    kind: ClassVar[str] = "bars"
    caption: str
    bars: Sequence[Bar]

    def share(self, bar: Bar) -> float:
        """Return a bar's length in per cent of the longest bar."""
        longest = max(b.value for b in self.bars)
        return 100 * bar.value / longest if longest > 0 else 0.0


@dataclass(frozen=True)
class Row:
    """Row of a table. A mark highlights the row and gives the reason."""

    cells: Sequence[str]
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """Rows below column headers; the first cell is the row header. Cells keep line breaks."""

    kind: ClassVar[str] = "table"
    caption: str
    head: Sequence[str]
    rows: Sequence[Row]
    folded: str = ""
    """Summary of a collapsed table; empty if the table is open."""
    commands: bool = False
    """True if the last column has shell commands."""
    even: bool = False
    """True if all columns except the first have equal widths."""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Verbatim:
    """Preformatted text with a copy button; with `file`, also a download button."""

    kind: ClassVar[str] = "verbatim"
    title: str
    text: str
    file: str = ""
    folded: bool = False


Block = Chart | Key | Facts | Bars | Table | Text | Verbatim


@dataclass(frozen=True)
class Section:
    """A titled part of a page."""

    title: str
    blocks: Sequence[Block]

    @property
    def anchor(self) -> str:
        """Fragment of links to the section."""
        return "".join(c if c.isalnum() else "-" for c in self.title.lower())

    @property
    def follows(self) -> bool:
        """True if the section shows the axis switch for its charts."""
        return any(isinstance(block, Chart) and block.follows for block in self.blocks)

    @property
    def has_curves(self) -> bool:
        """True if the section has curves; their horizontal axis can be logarithmic."""
        return any(isinstance(block, Chart) and block.is_curves for block in self.blocks)

    @property
    def smooths(self) -> bool:
        """True if the section has smoothed curves and shows the choice of weights."""
        return any(isinstance(block, Chart) and block.smooths for block in self.blocks)


@dataclass(frozen=True)
class Page:
    """A page: the verdict, then sections with the evidence."""

    title: str
    kicker: str
    verdict: str
    """Headline: the verdict in at most `HEADLINE_WORDS` words."""
    verdict_rest: str
    sections: Sequence[Section]
    axes: Sequence[Axis] = ()
    smoothing: float = 0.0
    """Initially selected weight, one of `SMOOTHING`."""
    notice: str = ""
    """Warning about the verdict, such as a stopped run."""
    notes: Sequence[str] = ()
    """Further caveats, one or two sentences per note."""
    opening: Sequence[Block] = ()
    footer: str = ""

    @cached_property
    def charts(self) -> list[Chart]:
        """All charts of the page, in order."""
        blocks = [*self.opening, *(block for section in self.sections for block in section.blocks)]
        return [block for block in blocks if isinstance(block, Chart)]

    def html(self) -> str:
        """Return a self-contained HTML document, which ends with its hash and makes no network requests."""
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from jinja2.utils import htmlsafe_json_dumps
        from markupsafe import Markup
        from plotly.offline import get_plotlyjs

        look = Path(__file__).parent / "look"
        environment = Environment(
            loader=FileSystemLoader(look),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters["zip"] = zip
        environment.filters["breakable"] = lambda text: Markup("<wbr>").join(BREAKS.split(text))
        data = {
            "axes": [vars(axis) for axis in self.axes],
            "smoothing": self.smoothing,
            "charts": [c.data() for c in self.charts],
        }
        html = environment.get_template("page.html").render(
            page=self,
            weights=SMOOTHING,
            data=htmlsafe_json_dumps(data, allow_nan=False, separators=(",", ":")),
            style=Markup((look / "page.css").read_text(encoding="utf-8")),
            script=Markup((look / "page.js").read_text(encoding="utf-8")),
            plotly=Markup(get_plotlyjs()) if self.charts else "",
        )
        return f"{html}{_seal(html)}"


def write_page(page: Page, path: Path) -> Path:
    """Write a page and return its path. Only an unmodified archwright page is overwritten."""
    check_replaceable(path, _is_page)
    atomic_write(path, page.html())
    return path


def _is_page(path: Path) -> bool:
    """True if a file is an unmodified archwright page."""
    content = path.read_bytes().decode("utf-8", "replace")  # unchanged line endings
    html = content[: content.rfind("\n<!--")]
    return content == f"{html}{_seal(html)}"


def _seal(html: str) -> str:
    return f"\n<!-- archwright, SHA-256: {hashlib.sha256(html.encode()).hexdigest()} -->\n"


BREAKS = re.compile(r"(?<=\w[.=/_:])(?=[^\W\d])")
"""Possible line breaks in the path of a key: after a separator, never inside a word."""


def _plain(value: Json) -> Json:
    """Return JSON values: lists for arrays, six significant digits, null for non-finite numbers."""
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (float, np.floating)):
        if not math.isfinite(value):
            return None
        rounded = float(f"{value:.6g}")
        return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded
    return int(value) if isinstance(value, np.integer) else value
