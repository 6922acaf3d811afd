"""The report as a reader meets it: drawn, hovered, switched, saved, in the dark and on a phone."""

import csv
import io
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from archwright.reporting.document import Axis, Chart, Page, Row, Section, Table
from archwright.reporting.overlay import write_overlay
from archwright.reporting.page import write_report
from archwright.reporting.thinning import smoothed
from tests.visitor import Visitor, of_plots, ranges, saved, style

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)> " + "w" * 400
STEPS = 300
TOKENS = STEPS * 4096
FLOPS = TOKENS * 8_912_896
SECONDS = STEPS * 0.147
CHARTS = ["loss", "bits-per-byte", "lr", "grad-norm", "tokens-per-second", "utilisation"]


@pytest.fixture(scope="module")
def report(made_once: Any) -> Path:
    """The report of a run that was resumed once."""
    ends = [made_once.event("resumed", STEPS // 2), made_once.event("finished", STEPS)]
    lines = [*made_once.steps(STEPS), *made_once.baselines(STEPS), *ends]
    return write_report(made_once.run(lines, "model.feedforward.kind=gelu", sample=NASTY))


def test_every_chart_is_drawn(tab: Any) -> None:
    lines = of_plots(tab, "p.querySelectorAll('.scatterlayer .js-line').length")
    # Raw, smoothed and held out; the bits per byte are of held-out text; the learning rate is not smoothed.
    assert lines == [3, 1, 1, 2, 2, 2]
    assert tab.locator("#chart-loss .scatterlayer .point").count() >= 8
    labels = tab.locator("#chart-loss .shapelayer").all_text_contents()
    assert any("xz -9e, 1.710 bits per byte" in label for label in labels)
    assert any("resumed" in label for label in labels)


@pytest.mark.release
def test_a_sample_is_only_text(tab: Any) -> None:
    assert tab.locator("#sample pre").text_content() == NASTY
    assert tab.locator("img").count() == 0


@pytest.mark.release
def test_hovering_tells_the_values(tab: Any) -> None:
    tab.locator("#chart-loss").scroll_into_view_if_needed()
    box = tab.locator("#chart-loss .nsewdrag").first.bounding_box()
    for offset in (-3, 0):
        tab.mouse.move(box["x"] + box["width"] / 2 + offset, box["y"] + box["height"] / 2)
    tab.wait_for_selector("#chart-loss .hoverlayer .legendtext")
    label = tab.locator("#chart-loss .hoverlayer").text_content()
    assert re.search(r"6\d\d\.\dk tokens", label)
    assert re.search(r"each step : 2\.\d+ at step 1(49|50|51)", label)
    assert "smoothed (0.9)" in label
    assert "bits per byte" in label


@pytest.mark.release
@pytest.mark.parametrize(
    ("label", "title", "end"),
    [
        ("Time", "training time, seconds", SECONDS),
        ("Steps", "steps of training", STEPS),
        ("FLOPs", "training FLOPs", FLOPS),
        ("Tokens", "tokens trained on", TOKENS),
    ],
)
def test_the_switch_changes_every_axis(tab: Any, label: str, title: str, end: float) -> None:
    tab.get_by_role("radio", name=label).click()
    tab.wait_for_timeout(200)
    assert of_plots(tab, "p._fullLayout.xaxis.title.text") == [title] * 6
    assert ranges(tab) == [pytest.approx([0, end], rel=1e-5)] * 6
    assert of_plots(tab, "p.data[0].x.at(-1)") == [pytest.approx(end, rel=1e-5)] * 6


@pytest.mark.release
def test_both_axes_can_be_logarithmic(tab: Any) -> None:
    def axes(which: str) -> list[Any]:
        return of_plots(tab, f"p._fullLayout.{which}.type")

    assert axes("xaxis") == ["linear"] * 6
    assert axes("yaxis") == ["linear"] * 3 + ["log"] + ["linear"] * 2  # the norm of gradients
    tab.get_by_role("radio", name="Log").click()
    tab.wait_for_timeout(200)
    assert axes("xaxis") == ["log"] * 6
    ends = [math.log10(4096), math.log10(TOKENS)]
    assert ranges(tab) == [pytest.approx(ends, rel=1e-5)] * 6
    button = tab.get_by_label("Logarithmic vertical axis of Loss", exact=True)
    button.click()
    tab.wait_for_timeout(200)
    assert axes("yaxis")[0] == "log"
    assert button.get_attribute("aria-pressed") == "true"
    low, high = of_plots(tab, "p._fullLayout.yaxis.range")[0]
    assert 10**low < 2.3 < 8 < 10**high
    tab.get_by_label("Logarithmic vertical axis of Gradient norm").click()
    tab.wait_for_timeout(200)
    assert axes("yaxis")[3] == "linear"
    tab.get_by_label("Logarithmic vertical axis of Gradient norm").click()
    button.click()


@pytest.mark.release
def test_smoothing_keeps_each_step_faint_behind(tab: Any, made: Any) -> None:
    def drawn() -> list[Any]:
        return list(
            tab.evaluate(
                "document.querySelector('#chart-loss .plot').data.filter(t => /^training/.test(t.name))"
                ".map(t => [t.name, t.opacity ?? 1, t.y.at(-1)])"
            )
        )

    losses = np.array([x["loss"] for x in made.steps(STEPS) if x["kind"] == "train"])
    for label, weight in (("None", 0.0), ("0.99", 0.99), ("0.9", 0.9)):
        tab.get_by_role("radio", name=label, exact=True).click()
        tab.wait_for_timeout(200)
        raw, *means = drawn()
        assert raw[:2] == ["training, each step", 0.35 if weight else 1]
        assert raw[2] == pytest.approx(losses[-1], rel=1e-5)
        if weight:
            end = pytest.approx(smoothed(losses, weight)[-1], rel=1e-5)
            assert means == [[f"training, smoothed ({weight:g})", 1, end]]
        else:
            assert means == []


def test_zooming_moves_all_charts_and_can_be_undone(tab: Any) -> None:
    whole = ranges(tab)
    tab.locator("#chart-loss").scroll_into_view_if_needed()
    box = tab.locator("#chart-loss .nsewdrag").first.bounding_box()
    middle = box["y"] + box["height"] / 2
    tab.mouse.move(box["x"] + 0.25 * box["width"], middle)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.75 * box["width"], middle, steps=4)
    tab.mouse.up()
    tab.wait_for_timeout(400)
    assert ranges(tab) == [pytest.approx([0.25 * TOKENS, 0.75 * TOKENS], rel=0.02)] * 6
    tab.get_by_label("Reset the zoom of Learning rate").click()
    tab.wait_for_timeout(400)
    assert ranges(tab) == whole
    assert tab.get_by_label("Reset the zoom of Loss").is_hidden()


def test_the_data_can_be_saved(tab: Any, made: Any) -> None:
    text = saved(tab, "Download the data of Loss as CSV").decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    lines = list(made.steps(STEPS))
    losses = [float(row["value"]) for row in rows if row["series"] == "training, each step"]
    assert losses == pytest.approx([x["loss"] for x in lines if x["kind"] == "train"], rel=1e-5)
    steps = [int(row["step"]) for row in rows if row["series"] == "held out"]
    assert steps == [x["step"] for x in lines if x["kind"] == "eval"]


@pytest.mark.release
def test_charts_can_be_saved_as_pictures(tab: Any) -> None:
    svg = ElementTree.fromstring(saved(tab, "Download Loss as SVG"))
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert "nats per token" in "".join(svg.itertext())
    assert saved(tab, "Download Loss as PNG").startswith(b"\x89PNG")


@pytest.mark.release
def test_dark_mode_reaches_the_charts(tab: Any) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        tab.wait_for_timeout(300)
        grounds.append(style(tab, "body", "background-color"))
        assert style(tab, "#chart-loss .main-svg", "background-color") == grounds[-1]
    assert grounds[0] != grounds[1]


@pytest.mark.release
@pytest.mark.parametrize("width", [380, 700, 1600])
def test_no_width_scrolls_sideways(tab: Any, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 800})
    tab.wait_for_timeout(500)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    for left, right in of_plots(tab, "(b => [b.left, b.right])(p.getBoundingClientRect())"):
        assert 0 <= left < right <= width
    drawn = of_plots(tab, "[p._fullLayout.width, p.clientWidth]")
    assert all(abs(chart - place) <= 1 for chart, place in drawn)


@pytest.mark.release
def test_every_control_is_named_and_reached_by_keyboard(tab: Any) -> None:
    for role, option, expected in (
        ("Draw against", "Tokens", "p._fullLayout.xaxis.range[1]"),
        ("Scale of x", "Linear", "p._fullLayout.xaxis.type"),
        ("Smoothing", "0.9", "p.data.map(t => t.name)"),
    ):
        before = of_plots(tab, expected)[0]
        tab.get_by_role("group", name=role).get_by_role("radio", name=option, exact=True).focus()
        tab.keyboard.press("ArrowRight")
        tab.wait_for_timeout(200)
        assert of_plots(tab, expected)[0] != before
    tab.get_by_role("radio", name="0.9", exact=True).click()
    names = tab.evaluate("[...document.querySelectorAll('button')].map(b => b.ariaLabel)")
    assert all(names)
    assert len(set(names)) == len(names)


@pytest.mark.release
@pytest.mark.parametrize("steps", [0, 1])
def test_the_shortest_runs_are_pages_too(visitor: Visitor, made: Any, steps: int) -> None:
    lines = list(made.steps(steps, evaluations=0)) if steps else []
    tab = visitor.open(write_report(made.run(lines)))
    assert tab.locator("h1").is_visible()
    assert tab.locator(".plot .point").count() == (5 if steps else 0)
    for left, right in ranges(tab):
        assert (left, right > 0) == (0, True)
    tab.close()


@pytest.mark.release
def test_several_runs_lie_over_each_other(visitor: Visitor, made: Any, tmp_path: Path) -> None:
    runs = [made.finished(60, name="one"), made.finished(60, "model.norm.kind=layer", name="two")]
    tab = visitor.open(write_overlay(runs, tmp_path / "overlay.html"), 400)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    lines = "p.querySelectorAll('.scatterlayer .js-line').length"
    before = of_plots(tab, lines)
    assert before == [2, 4, 2, 2, 4, 4, 4]  # held out, training, bits, lr, norm, speed, share
    tab.get_by_role("button", name="Show two").click()
    tab.wait_for_timeout(300)
    assert of_plots(tab, lines) == [number // 2 for number in before]
    row = tab.locator("#differences tr", has_text="model.norm.kind")
    assert row.locator("td").all_inner_texts() == ['"rms"', '"layer"']
    shown = row.locator("td").first.evaluate("cell => getComputedStyle(cell, '::before').content")
    assert shown == '"one"'  # where the table has no head
    tab.close()


@pytest.mark.release
def test_a_heat_map_is_one_more_section(visitor: Visitor, tmp_path: Path) -> None:
    trace = {
        "type": "heatmap",
        "along": {"step": [10, 20, 30], "tokens": [1000, 2000, 3000]},
        "y": ["layer 0", "layer 1"],
        "z": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]],
        "colorscale": "$shades",
    }
    chart = Chart("norms", "Gradient norm", "It grows with depth.", [trace])
    axes = [Axis("tokens", "Tokens", "tokens", "%{x}"), Axis("step", "Steps", "steps", "%{x}")]
    page = Page("t", "k", "head", "rest", [Section("Probes", [chart])], axes)
    path = tmp_path / "page.html"
    path.write_text(page.html())
    tab = visitor.open(path)
    assert tab.locator("#chart-norms .heatmaplayer image").count() == 1
    tab.get_by_role("radio", name="Steps").click()
    tab.wait_for_timeout(200)
    assert ranges(tab) == [[5, 35]]
    rows = saved(tab, "Download the data of Gradient norm as CSV").decode().splitlines()
    assert rows[:2] == ["series,y,step,tokens,value", ",layer 0,10,1000,1"]
    assert len(rows) == 7
    tab.close()


def test_nothing_was_requested_and_nothing_complained(visitor: Visitor, tab: Any) -> None:
    visitor.check()


def test_long_heads_end_before_their_values_on_a_phone(visitor: Visitor, tmp_path: Path) -> None:
    head = ("", "llama-3.2-1b", ":attention.num_kv_heads=32", "gemma", "how")
    row = Row(("time", "4.1 days", "20.6 to 34.4 days", "9 days", "estimated"))
    table = Table("Costs.", head, [row])
    path = tmp_path / "page.html"
    path.write_text(Page("t", "k", "head", "rest", [Section("Model", [table])]).html(), "utf-8")
    tab = visitor.open(path, 420)
    heights = tab.evaluate("[...document.querySelectorAll('td')].map(e => e.clientHeight)")
    assert heights[1] > 1.5 * heights[0] == 1.5 * heights[2]  # it goes on in a second line
    assert tab.evaluate("document.documentElement.scrollWidth") <= 420
    tab.close()
