"""The page as a file: whole, escaped, asking for nothing, readable in light and dark."""

import json
import re
from html.parser import HTMLParser
from importlib import resources

import numpy as np
import pytest

from archwright.reporting.document import (
    Axis,
    Bar,
    Bars,
    Chart,
    Fact,
    Facts,
    Page,
    Row,
    Section,
    Table,
    Text,
    Verbatim,
)

NASTY = "</script><script>alert(1)</script> <!-- {{ 7 * 7 }} ${x} \"'& \u2028"
CHART = Chart(
    "c", NASTY, NASTY, [{"type": "scatter", "name": NASTY, "x": [1.0, np.nan], "y": np.ones(2)}]
)
EVERY_BLOCK = [
    CHART,
    Facts({NASTY: [Fact(NASTY, NASTY, NASTY)]}),
    Bars(NASTY, [Bar(NASTY, 1.0, NASTY, strong=True)]),
    Table(NASTY, (NASTY, NASTY), [Row((NASTY, NASTY), NASTY)]),
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


def test_everything_is_escaped() -> None:
    nasty = Page(NASTY, NASTY, NASTY, NASTY, [Section(NASTY, EVERY_BLOCK)], notice=NASTY)
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


def test_charts_say_what_they_show() -> None:
    reader = Reader(page(Chart("c", "title", "It falls.", [])).html())
    pictures = [a for t, a in reader.tags if a.get("role") == "img"]
    assert [picture["aria-label"] for picture in pictures] == ["It falls."]


def test_the_switch_is_there_for_charts_that_follow_it() -> None:
    axes = [Axis("a", "A", "a", "%{x}"), Axis("b", "B", "b", "%{x}")]
    following = Chart("c", "t", "s", [{"along": {"a": [1], "b": [2]}, "y": [3]}])
    radios = [
        a for _, a in Reader(page(following, axes=axes).html()).tags if a.get("type") == "radio"
    ]
    assert [radio["value"] for radio in radios] == ["a", "b"]
    assert "radio" not in page(CHART, axes=axes).html().split("<main>")[1].split("</main>")[0]


def test_bars_are_shares_of_the_longest() -> None:
    bars = Bars("c", [Bar("a", 1.0, "1"), Bar("b", 4.0, "4")])
    assert [bars.share(bar) for bar in bars.bars] == [25.0, 100.0]
    assert Bars("c", [Bar("a", 0.0, "0")]).share(Bar("a", 0.0, "0")) == 0.0


def luminance(color: str) -> float:
    """Return the relative luminance of `#rrggbb` (WCAG 2.1)."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


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
    style = resources.files("archwright.reporting").joinpath("look/page.css").read_text()
    palettes = re.findall(r":root[^{]*\{(.*?)\}", style, re.S)
    colors = dict(re.findall(r"--([\w-]+): (#\w{6})", palettes[0]))
    if theme == "dark":
        colors |= dict(re.findall(r"--([\w-]+): (#\w{6})", palettes[1]))
    high, low = sorted((luminance(colors[ink]), luminance(colors[ground])), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 4.5
