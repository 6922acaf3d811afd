"""The page as a file: whole, escaped, asking for nothing, readable in light and dark."""

import json
import re
from html.parser import HTMLParser
from importlib import resources
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from archwright.reporting.document import (
    SMOOTHING,
    Axis,
    Bar,
    Bars,
    Chart,
    Fact,
    Facts,
    Key,
    Page,
    Row,
    Section,
    Series,
    Table,
    Text,
    Verbatim,
    write_page,
)
from archwright.spec.errors import UserError

Values = NDArray[np.float64]
NASTY = "</script><script>alert(1)</script> <!-- {{ 7 * 7 }} ${x} \"'& \u2028"
CHART = Chart(
    "c", NASTY, NASTY, [{"type": "scatter", "name": NASTY, "x": [1.0, np.nan], "y": np.ones(2)}]
)
EVERY_BLOCK = [
    CHART,
    Facts({NASTY: [Fact(NASTY, NASTY, NASTY)]}),
    Bars(NASTY, [Bar(NASTY, 1.0, NASTY, strong=True)]),
    Table(NASTY, (NASTY, NASTY), [Row((NASTY, NASTY), NASTY)]),
    Table(NASTY, [NASTY] * 6, [Row([NASTY] * 6)], folded=NASTY, commands=True),
    Key([Series(NASTY, NASTY, "series-1")]),
    Text(NASTY),
    Verbatim(NASTY, NASTY, file=NASTY),
    Verbatim(NASTY, NASTY, folded=True),
]


class Reader(HTMLParser):
    """Reads tags, attributes, text, and the contents of scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.scripts = "", [""]
        self._in_script = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        self.scripts += [""] if tag == "script" else []

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data
        else:
            self.text += data


def page(*blocks: object, **settings: object) -> Page:
    """Return a page with one section."""
    section = Section("Part", blocks)  # type: ignore[arg-type]
    return Page("title", "kicker", "head", "rest", [section], **settings)  # type: ignore[arg-type]


def data_of(html: str) -> dict[str, list[dict[str, object]]]:
    """Return the data embedded in a page."""
    found = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', html, re.S)
    assert found
    parsed: dict[str, list[dict[str, object]]] = json.loads(found[1])
    return parsed


def test_a_page_is_known_again_whatever_ends_its_lines(tmp_path: Path) -> None:
    page = Page("t", "k", "v", "r", [Section("a", [Text("one\r\ntwo\rthree")])])
    path = write_page(page, tmp_path / "page.html")
    assert write_page(page, path).read_bytes().count(b"\r") == 2
    path.write_bytes(path.read_bytes().replace(b"\r", b""))
    with pytest.raises(UserError, match="or that was changed since"):
        write_page(page, path)


def test_everything_is_escaped() -> None:
    nasty = Page(
        NASTY, NASTY, NASTY, NASTY, [Section(NASTY, EVERY_BLOCK)], notice=NASTY, notes=[NASTY]
    )
    reader = Reader(nasty.html())
    assert len([tag for tag, _ in reader.tags if tag == "script"]) == 3  # plotly, data, ours
    assert "<" not in reader.scripts[2]
    assert reader.text.count(NASTY) >= 15
    assert "49" not in reader.text


def test_the_data_is_strict_json_with_gaps_as_null() -> None:
    chart = data_of(page(CHART).html())["charts"][0]
    assert chart["title"] == NASTY
    assert chart["traces"] == [{"type": "scatter", "name": NASTY, "x": [1, None], "y": [1, 1]}]


def test_numbers_keep_six_digits_and_whole_ones_all() -> None:
    trace = {"y": np.array([1 / 3, 123456.789]), "customdata": np.array([123_456_789])}
    chart = data_of(page(Chart("c", "t", "s", [trace])).html())["charts"][0]
    assert chart["traces"] == [{"y": [0.333333, 123457], "customdata": [123_456_789]}]


def test_nothing_is_loaded_from_elsewhere() -> None:
    reader = Reader(page(*EVERY_BLOCK).html())
    for tag, attributes in reader.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            link = attributes.get(name)
            assert link is None or link.startswith(("#", "data:")), (tag, link)
    policy = next(a["content"] for t, a in reader.tags if t == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_plotly_is_there_once_and_only_with_charts() -> None:
    with_charts = page(CHART, Chart("d", "t", "s", [])).html()
    assert with_charts.count("* plotly.js v") == 1
    assert "plotly.js v" not in page(Text("words")).html()


def test_the_switch_is_there_for_charts_that_follow_it() -> None:
    axes = [Axis("a", "A", "a", "%{x}"), Axis("b", "B", "b", "%{x}")]
    following = Chart("c", "t", "s", [{"along": {"a": [1], "b": [2]}, "y": [3]}])
    radios = [
        a for _, a in Reader(page(following, axes=axes).html()).tags if a.get("type") == "radio"
    ]
    assert [radio["value"] for radio in radios] == ["a", "b", "linear", "log"]
    assert [radio["value"] for radio in radios if "checked" in radio] == ["a", "linear"]
    assert "radio" not in page(CHART, axes=axes).html().split("<main>")[1].split("</main>")[0]


def test_weights_of_smoothing_can_be_chosen_where_curves_have_them() -> None:
    axes = [Axis("a", "A", "a", "%{x}")]
    along = {"along": {"a": [1.0, 2.0]}, "y": [3.0, 2.0]}
    chart = Chart("c", "t", "s", [{**along, "raw": True}, {**along, "smoothing": 0.9}])
    html = page(chart, axes=axes, smoothing=0.9).html()
    radios = [a for _, a in Reader(html).tags if a.get("type") == "radio"]
    weights = [a for a in radios if str(a["name"]).startswith("smoothing-")]
    assert [a["value"] for a in weights] == [str(weight) for weight in SMOOTHING]
    assert [a["value"] for a in weights if "checked" in a] == ["0.9"]


@pytest.mark.parametrize(
    ("values", "takes"),
    [
        ([3.0, 2.0], True),
        ([0.0, 2.0, np.nan], True),
        ([-0.1, 2.0], False),
        ([0.0, 0.0], False),
        ([None, 1.0], True),
    ],
)
def test_a_logarithm_is_offered_where_no_value_is_below_zero(
    values: list[float | None], takes: bool
) -> None:
    along = {"a": list(range(len(values)))}
    chart = Chart("c", "t", "s", [{"along": along, "y": values}])
    assert chart.takes_logarithm == takes
    offered = [a for _, a in Reader(page(chart).html()).tags if a.get("data-action") == "logarithm"]
    assert len(offered) == takes
    assert not Chart("c", "t", "s", [{"x": [1], "y": [1.0]}]).takes_logarithm
    assert not Chart("c", "t", "s", [{"along": along, "z": [[1.0]]}]).takes_logarithm


def test_a_key_names_its_series_and_can_be_pressed() -> None:
    reader = Reader(page(Key([Series("gelu", "g", "series-2", "diamond", "dot")])).html())
    button = next(a for t, a in reader.tags if a.get("data-action") == "toggle")
    assert (button["data-group"], button["aria-pressed"]) == ("g", "true")
    assert any(a.get("stroke-dasharray") for t, a in reader.tags if t == "path")


def colors_of(theme: str) -> dict[str, str]:
    """Return the named colours of the style sheet."""
    style = resources.files("archwright.reporting").joinpath("look/page.css").read_text()
    palettes = re.findall(r":root[^{]*\{(.*?)\}", style, re.S)
    used = palettes[:1] if theme == "light" else palettes[:2]
    return {k: v for text in used for k, v in re.findall(r"--([\w-]+): (#\w{6})", text)}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("ink", "ground"),
    [
        ("ink", "page"),
        ("ink", "raised"),
        ("muted", "page"),
        ("muted", "raised"),
        ("training", "page"),
        ("held-out", "page"),
        ("alarm", "page"),
        ("marked-ink", "marked"),
        ("muted", "marked"),
    ],
)
def test_text_and_curves_have_contrast(theme: str, ink: str, ground: str) -> None:
    colors = colors_of(theme)
    assert contrast(colors[ink], colors[ground]) >= 4.5


SIGHT = {
    "all cones": np.eye(3),
    "no red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
"""What is left of linear red, green and blue (Machado, Oliveira and Fernandes 2009, severity 1)."""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
def test_series_can_be_told_apart(theme: str, sight: str) -> None:
    colors = colors_of(theme)
    series = [colors[f"series-{i}"] for i in range(8)]
    assert min(contrast(color, colors["page"]) for color in series) >= 3
    seen = [lab(np.array(SIGHT[sight]) @ linear(color)) for color in series]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) >= 20


def linear(color: str) -> Values:
    """Return linear red, green and blue of `#rrggbb`."""
    channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb: Values) -> Values:
    """Return L*, a* and b* (CIE 1976, white point D65), in which 2 is about what an eye can tell apart."""
    rows = [[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]]
    xyz = np.array(rows) @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.0888]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours (WCAG 2.1)."""
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (high + 0.05) / (low + 0.05)
