"""The report as a reader meets it: drawn, hovered, switched, saved, in the dark and on a phone."""

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from archwright.reporting.document import Axis, Chart, Page, Section
from archwright.reporting.page import write_report

Visit = Callable[..., Any]


@pytest.fixture
def visit(chromium: Any) -> Iterator[Visit]:
    """Open a page, and see that it asked for nothing and complained of nothing."""
    requests: list[str] = []
    complaints: list[str] = []
    contexts: list[Any] = []

    def opened(path: Path, width: int = 1200, **settings: Any) -> Any:
        viewport = {"width": width, "height": 800}
        contexts.append(chromium.new_context(viewport=viewport, **settings))
        tab = contexts[-1].new_page()
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        tab.goto(path.as_uri())
        tab.wait_for_selector("html[data-ready]", state="attached")
        return tab

    yield opened
    for context in contexts:
        context.close()
    outside = [url for url in requests if not url.startswith(("file:", "data:", "blob:"))]
    assert outside == []
    assert len([url for url in requests if url.startswith("file:")]) == len(contexts)
    assert complaints == []


@pytest.fixture
def report(made: Any) -> Path:
    """The report of a run that was resumed once."""
    lines = [*made.steps(300), *made.baselines(300), made.event("resumed", 150)]
    run = made.run([*lines, made.event("finished", 300)], "model.feedforward.kind=gelu", sample=NASTY)
    return write_report(run)


NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)> " + "w" * 400


def style(tab: Any, selector: str, name: str) -> str:
    """Return a computed style."""
    script = "([s, n]) => getComputedStyle(document.querySelector(s)).getPropertyValue(n)"
    return str(tab.evaluate(script, [selector, name]))


def ranges(tab: Any) -> list[list[float]]:
    """Return what every chart shows of its horizontal axis."""
    found = tab.evaluate(
        "[...document.querySelectorAll('.plot')].map(p => p._fullLayout.xaxis.range)"
    )
    return [[float(end) for end in pair] for pair in found]


def test_every_chart_is_drawn(visit: Visit, report: Path) -> None:
    tab = visit(report)
    assert tab.locator(".plot").count() == 5
    lines = tab.evaluate(
        "[...document.querySelectorAll('.plot')].map(p => p.querySelectorAll('.js-line').length)"
    )
    assert lines == [3, 1, 2, 2, 2]  # raw, mean and held out; the learning rate has no mean
    assert tab.locator("#chart-loss .scatterlayer .point").count() >= 8
    labels = tab.locator("#chart-loss .shapelayer, #chart-loss .shape-label").all_text_contents()
    assert any("xz -9e, 1.710 bits per byte" in label for label in labels)
    assert any("resumed" in label for label in labels)


def test_a_sample_is_only_text(visit: Visit, report: Path) -> None:
    tab = visit(report)
    assert tab.locator("#sample pre").text_content() == NASTY
    assert tab.locator("img").count() == 0


def test_hovering_tells_the_values(visit: Visit, report: Path) -> None:
    tab = visit(report)
    tab.locator("#chart-loss").scroll_into_view_if_needed()
    box = tab.locator("#chart-loss .nsewdrag").first.bounding_box()
    tab.mouse.move(box["x"] + 0.5 * box["width"] - 3, box["y"] + 0.5 * box["height"])
    tab.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    tab.wait_for_selector("#chart-loss .hoverlayer .legendtext")
    label = tab.locator("#chart-loss .hoverlayer").text_content()
    assert "k tokens" in label
    assert "at step 150" in label
    assert "mean of 7 steps" in label
    assert "bits per byte" in label


def test_the_switch_changes_every_axis(visit: Visit, report: Path) -> None:
    tab = visit(report)
    script = "[...document.querySelectorAll('.plot')].map(p => p._fullLayout.xaxis.title.text)"
    for label, title, end in (
        ("Time", "training time, seconds", 300 * 0.147),
        ("FLOPs", "training FLOPs", 300 * 4096 * 8_912_896),
        ("Tokens", "tokens trained on", 300 * 4096),
    ):
        tab.get_by_role("radio", name=label).click()
        tab.wait_for_timeout(100)
        assert tab.evaluate(script) == [title] * 5
        assert ranges(tab) == [pytest.approx([0, end], rel=1e-5)] * 5


def test_zooming_moves_all_charts_and_can_be_undone(visit: Visit, report: Path) -> None:
    tab = visit(report)
    whole = ranges(tab)
    tab.locator("#chart-loss").scroll_into_view_if_needed()
    box = tab.locator("#chart-loss .nsewdrag").first.bounding_box()
    middle = box["y"] + box["height"] / 2
    tab.mouse.move(box["x"] + 0.25 * box["width"], middle)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.75 * box["width"], middle, steps=4)
    tab.mouse.up()
    tab.wait_for_timeout(300)
    end = whole[0][1]
    assert ranges(tab) == [pytest.approx([0.25 * end, 0.75 * end], rel=0.02)] * 5
    tab.get_by_label("Reset the zoom of Learning rate").click()
    tab.wait_for_timeout(300)
    assert ranges(tab) == whole
    assert tab.get_by_label("Reset the zoom of Loss").is_hidden()


def test_the_data_can_be_saved(visit: Visit, report: Path, made: Any) -> None:
    tab = visit(report)
    with tab.expect_download() as download:
        tab.get_by_label("Download the data of Loss as CSV").click()
    assert download.value.suggested_filename == "loss.csv"
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))
    saved = [float(row["value"]) for row in rows if row["series"] == "training, each step"]
    lines = [line for line in made.steps(300) if line["kind"] == "train"]
    assert saved == pytest.approx([line["loss"] for line in lines], rel=1e-5)
    steps = [int(row["step"]) for row in rows if row["series"] == "held out"]
    assert steps == [line["step"] for line in made.steps(300) if line["kind"] == "eval"]


def test_charts_can_be_saved_as_pictures(visit: Visit, report: Path) -> None:
    tab = visit(report)
    with tab.expect_download() as download:
        tab.get_by_label("Download Loss as SVG").click()
    svg = ElementTree.parse(download.value.path()).getroot()
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert "nats per token" in "".join(svg.itertext())
    with tab.expect_download() as download:
        tab.get_by_label("Download Loss as PNG").click()
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_text_can_be_saved(visit: Visit, report: Path) -> None:
    tab = visit(report)
    tab.get_by_text("spec.toml", exact=True).last.click()
    with tab.expect_download() as download:
        tab.get_by_label("Download spec.toml").click()
    assert "[optimizer]" in Path(download.value.path()).read_text()


def test_dark_mode_reaches_the_charts(visit: Visit, report: Path) -> None:
    light = visit(report, color_scheme="light")
    dark = visit(report, color_scheme="dark")
    grounds = [style(tab, "body", "background-color") for tab in (light, dark)]
    assert grounds[0] != grounds[1]
    for tab, ground in zip((light, dark), grounds, strict=True):
        assert style(tab, "#chart-loss .main-svg", "background-color") == ground
    light.emulate_media(color_scheme="dark")
    light.wait_for_timeout(200)
    assert style(light, "#chart-loss .main-svg", "background-color") == grounds[1]


@pytest.mark.parametrize("width", [380, 700, 1600])
def test_no_width_scrolls_sideways(visit: Visit, report: Path, width: int) -> None:
    tab = visit(report, width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    for box in (plot.bounding_box() for plot in tab.locator(".main-svg").all()):
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


def test_charts_follow_the_window(visit: Visit, report: Path) -> None:
    tab = visit(report, 1200)
    tab.set_viewport_size({"width": 500, "height": 800})
    tab.wait_for_timeout(400)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 500
    assert tab.locator("#chart-loss .main-svg").first.bounding_box()["width"] <= 500


def test_paper_is_light(visit: Visit, report: Path) -> None:
    tab = visit(report, color_scheme="dark")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    light = "rgb(255, 255, 255)"
    assert style(tab, "#chart-loss .main-svg", "background-color") == light
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    tab.wait_for_timeout(200)
    assert style(tab, "#chart-loss .main-svg", "background-color") != light


def test_every_control_is_reached_by_keyboard(visit: Visit, report: Path) -> None:
    tab = visit(report)
    tab.get_by_role("radio", name="Tokens").focus()
    tab.keyboard.press("ArrowRight")
    tab.wait_for_timeout(200)
    assert ranges(tab)[0][1] == pytest.approx(300 * 4096 * 8_912_896)
    names = tab.evaluate("[...document.querySelectorAll('button')].map(b => b.ariaLabel)")
    assert all(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("steps", [0, 1])
def test_the_shortest_runs_are_pages_too(visit: Visit, made: Any, steps: int) -> None:
    lines = list(made.steps(steps, evaluations=0)) if steps else []
    tab = visit(write_report(made.run(lines)))
    assert tab.locator("h1").is_visible()
    assert tab.locator(".plot .point").count() == (5 if steps else 0)


def test_a_heat_map_is_one_more_section(visit: Visit, tmp_path: Path) -> None:
    chart = Chart(
        name="norms",
        title="Gradient norm by layer",
        summary="It grows with depth.",
        traces=[
            {
                "type": "heatmap",
                "along": {"step": [10, 20, 30], "tokens": [1000, 2000, 3000]},
                "y": ["layer 0", "layer 1"],
                "z": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]],
                "colorscale": "$shades",
            }
        ],
    )
    axes = [Axis("tokens", "Tokens", "tokens", "%{x}"), Axis("step", "Steps", "steps", "%{x}")]
    page = Page("t", "k", "head", "rest", [Section("Probes", [chart])], axes)
    path = tmp_path / "page.html"
    path.write_text(page.html())
    tab = visit(path)
    assert tab.locator("#chart-norms .heatmaplayer image").count() == 1
    tab.get_by_role("radio", name="Steps").click()
    tab.wait_for_timeout(200)
    assert ranges(tab) == [[5, 35]]
    with tab.expect_download() as download:
        tab.get_by_label("Download the data of Gradient norm by layer as CSV").click()
    rows = Path(download.value.path()).read_text().splitlines()
    assert rows[:2] == ["series,y,step,tokens,value", ",layer 0,10,1000,1"]
    assert len(rows) == 7
