"""A page of sections: plain data in, one self-contained HTML file out.

A section is a title and blocks, and a block holds plain text and numbers only. The template in
`look/` is the one place where HTML is written, and it escapes everything. The report of a run and
the comparison of many are both a `Page`; to add a section is to build one more `Section`.
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

Json = Any  # what json.dumps takes, and numpy arrays
Symbol = Literal["circle", "square", "diamond", "triangle-up"]
Dash = Literal["solid", "dash", "dot", "dashdot"]

HEADLINE_WORDS = 12
"""Most words of a page's headline."""
MADE_BY = "Made by archwright"
"""How the last line of a page begins."""
SMOOTHING = (0.0, 0.9, 0.97, 0.99)
"""What a reader can choose of: the weight of the steps before in an exponential moving average; 0 is each step."""


@dataclass(frozen=True)
class Axis:
    """A quantity that curves can be drawn against, and its button on the switch."""

    column: str
    """The column of a trace's `along` that holds it."""
    label: str
    title: str
    hover: str
    """Heading of a hover label, with the place as plotly writes it: `%{x:.4s} tokens`."""
    divide: float = 1.0
    """The recorded unit over the unit shown, such as 60 for seconds shown as minutes."""


@dataclass(frozen=True)
class Chart:
    """One figure, drawn by plotly.

    A trace is a plotly trace. With `along` (a table of columns) in place of `x`, it follows the
    page's switch; with a `legendgroup`, it is hidden and shown by the button of a `Key`. With `smoothing`, it is
    shown where that weight is chosen; with `raw`, it is what was smoothed, and faint then. A colour of
    the form `$name` is `--name` of `look/page.css`, in light and in dark; `"$shades"` is the colour
    scale of heat maps. A heat map with `decades` gets colours
    by the logarithm of `z`; its labels find value and step in `customdata`.
    """

    kind: ClassVar[str] = "chart"
    name: str
    """The stem of the files it is saved as; unique in the page."""
    title: str
    summary: str
    """A description in a sentence, for readers who cannot see it."""
    traces: Sequence[Mapping[str, Json]]
    layout: Mapping[str, Json] = field(default_factory=dict)
    marks: Sequence[Mapping[str, Json]] = ()
    """Vertical lines that follow the switch: `{"along": {column: value}, "text": ...}`."""
    unit: str = ""
    """Title of the vertical axis."""
    note: str = ""
    full_width: bool = False
    height: float | None = None
    """In rem, where the usual one does not do."""
    saved: Mapping[str, Sequence[Json]] = field(default_factory=dict)
    """The columns that are saved as CSV, where the traces do not say it all."""

    @property
    def follows(self) -> bool:
        """Tell whether the chart can be drawn against each of the page's axes."""
        return any("along" in trace for trace in self.traces)

    @property
    def is_curves(self) -> bool:
        """Tell whether the chart follows the switch, and is no heat map."""
        return self.follows and not any("z" in trace for trace in self.traces)

    @property
    def smooths(self) -> bool:
        """Tell whether the chart has smoothed curves to choose from."""
        return any("smoothing" in trace for trace in self.traces)

    @property
    def takes_logarithm(self) -> bool:
        """Tell whether its vertical axis can be logarithmic: it has curves, and no value below 0."""
        if not self.is_curves:
            return False
        found = [np.asarray(trace["y"], dtype=np.float64).ravel() for trace in self.traces]
        values = np.concatenate(found)
        return bool((values > 0).any() and not (values < 0).any())

    def data(self) -> dict[str, Json]:
        """Return what the page's script needs, ready for JSON."""
        names = ("name", "title", "unit", "follows", "traces", "layout", "marks", "saved")
        found = {name: _plain(getattr(self, name)) for name in names}
        return found | {"takesLogarithm": self.takes_logarithm}


@dataclass(frozen=True)
class Series:
    """Traces of one style: distinguished by marker and dashes, too, not by colour alone."""

    label: str
    group: str
    """The `legendgroup` of its traces."""
    color: str
    """A colour of `look/page.css`, such as `series-1`."""
    symbol: Symbol = "circle"
    dash: Dash = "solid"


@dataclass(frozen=True)
class Key:
    """The legend of charts, which hides and shows a series in all charts of the page."""

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
    """Groups of labelled values, side by side where there is room."""

    kind: ClassVar[str] = "facts"
    groups: Mapping[str, Sequence[Fact]]


@dataclass(frozen=True)
class Bar:
    """One bar: a label, its length, and the value in words."""

    label: str
    value: float
    text: str
    strong: bool = False


@dataclass(frozen=True)
class Bars:
    """A few values as bars from zero."""

    kind: ClassVar[str] = "bars"
    caption: str
    bars: Sequence[Bar]

    def share(self, bar: Bar) -> float:
        """Return a bar's length in per cent of the longest."""
        longest = max(b.value for b in self.bars)
        return 100 * bar.value / longest if longest > 0 else 0.0


@dataclass(frozen=True)
class Row:
    """One row of a table. A row with a mark stands out, and the mark says why."""

    cells: Sequence[str]
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under a head; the first cell of a row names it. A line break in a cell is shown."""

    kind: ClassVar[str] = "table"
    caption: str
    head: Sequence[str]
    rows: Sequence[Row]
    folded: str = ""
    """The line that a long table is folded under."""
    commands: bool = False
    """Whether the last column is typed at a terminal."""
    even: bool = False
    """Whether all columns but the first are of one kind, and share the width."""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Verbatim:
    """Text shown as it is, to be copied; where it has a file name, it can be saved, too."""

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
        """The name that a link to the section ends in."""
        return "".join(c if c.isalnum() else "-" for c in self.title.lower())

    @property
    def follows(self) -> bool:
        """Tell whether the section holds charts that follow the switch, and so shows it."""
        return any(isinstance(block, Chart) and block.follows for block in self.blocks)

    @property
    def has_curves(self) -> bool:
        """Tell whether the section holds curves, whose horizontal axis can be logarithmic."""
        return any(isinstance(block, Chart) and block.is_curves for block in self.blocks)

    @property
    def smooths(self) -> bool:
        """Tell whether the section holds smoothed curves, and so shows the choice of weights."""
        return any(isinstance(block, Chart) and block.smooths for block in self.blocks)


@dataclass(frozen=True)
class Page:
    """A whole page: the verdict first, then what it stands on."""

    title: str
    kicker: str
    verdict: str
    """The headline, set large: the verdict in at most `HEADLINE_WORDS` words."""
    verdict_rest: str
    sections: Sequence[Section]
    axes: Sequence[Axis] = ()
    smoothing: float = 0.0
    """The weight of `SMOOTHING` that is chosen at first."""
    notice: str = ""
    """A warning to read before trusting the verdict, such as that the run was stopped."""
    notes: Sequence[str] = ()
    """More to know before trusting it, each a sentence or two."""
    opening: Sequence[Block] = ()
    footer: str = ""

    @cached_property
    def charts(self) -> list[Chart]:
        """All charts of the page, in order."""
        blocks = [*self.opening, *(block for section in self.sections for block in section.blocks)]
        return [block for block in blocks if isinstance(block, Chart)]

    def html(self) -> str:
        """Return the page as one self-contained HTML document that requests nothing, with its seal."""
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
    """Write a page where the user wants it, in place of nothing but a page of ours, and return its path."""
    check_replaceable(path, _is_page)
    atomic_write(path, page.html())
    return path


def _is_page(path: Path) -> bool:
    """True if a file is a page of ours that nobody has changed."""
    content = path.read_bytes().decode("utf-8", "replace")  # ends of lines as they are
    html = content[: content.rfind("\n<!--")]
    return content == f"{html}{_seal(html)}"


def _seal(html: str) -> str:
    return f"\n<!-- archwright, SHA-256: {hashlib.sha256(html.encode()).hexdigest()} -->\n"


BREAKS = re.compile(r"(?<=\w[.=/_:])(?=[^\W\d])")
"""Where the path of a key may be broken into lines, so that it is broken in no word."""


def _plain(value: Json) -> Json:
    """Return JSON values: lists for arrays, six significant digits, null for what is not finite."""
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
