"""The page of a study as a reader meets it: drawn, hovered, switched, saved, in the dark and on a phone."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from archwright.lab.report.page import write_page
from tests.lab import made_results as made
from tests.visitor import Visitor, of_plots, saved

pytestmark = pytest.mark.release

TOKENS = made.STEPS * made.TOKENS_PER_STEP
CHARTS = ["effects", "loss", "training", "difference", "lr"]
CURVES = slice(1, 4)
LONG = made.LONG_NAMES[0]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(made.twelve_variants(), tmp_path_factory.mktemp("study"))


def hover(tab: Any, chart: str, trace: str, point: int) -> str:
    """Point at a point of a trace, and return what the label says."""
    tab.locator(f"#chart-{chart}").scroll_into_view_if_needed()
    place = """([chart, name, k]) => {
      const plot = document.querySelector(`#chart-${chart} .plot`), {_fullLayout: l} = plot;
      const trace = plot._fullData.find(t => t.name === name), box = plot.getBoundingClientRect();
      return [box.left + l.xaxis._offset + l.xaxis.d2p(trace.x[k]),
              box.top + l.yaxis._offset + l.yaxis.d2p(trace.y[k])];
    }"""
    x, y = tab.evaluate(place, [chart, trace, point])
    tab.mouse.move(x - 4, y)
    tab.mouse.move(x, y)
    tab.wait_for_selector(f"#chart-{chart} .hoverlayer text")
    tab.wait_for_timeout(100)
    return str(tab.locator(f"#chart-{chart} .hoverlayer").text_content())


def test_every_chart_is_drawn(tab: Any) -> None:
    names = tab.evaluate("[...document.querySelectorAll('.chart')].map(c => c.id.slice(6))")
    assert names == CHARTS
    assert all(of_plots(tab, "p.querySelectorAll('.scatterlayer .point').length > 20"))


def test_hovering_an_effect_tells_it(tab: Any) -> None:
    effect = made.twelve_variants().effects[2]
    said = hover(tab, "effects", "no rope", 0)
    assert said.startswith("no ropeworse, +0.0")
    seed = hover(tab, "effects", "no rope, each seed", 1)
    assert f"seed 1: {effect.differences[1]:+.4f} nats per token" in seed


def test_the_key_hides_a_variant_in_all_charts(tab: Any) -> None:
    def shown() -> list[int]:
        return of_plots(tab, "p._fullData.filter(t => t.visible === true).length")

    before = shown()
    button = tab.get_by_role("button", name=f"Show {LONG}").first
    button.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_timeout(300)
    pressed = "bs => bs.map(b => b.getAttribute('aria-pressed'))"
    keys = tab.get_by_role("button", name=f"Show {LONG}").evaluate_all(pressed)
    assert keys == ["false"] * 2
    lost = [b - a for a, b in zip(shown(), before, strict=True)]
    assert lost == [0, 2, 2, 2, 7]  # band and mean; five seeds, mean, optimum and grid
    button.click()
    tab.wait_for_timeout(300)
    assert shown() == before


def test_what_a_chart_shows_can_be_saved(tab: Any) -> None:
    results = made.twelve_variants()
    text = saved(tab, "Download the data of Difference from modern as CSV").decode()
    lines = list(csv.DictReader(io.StringIO(text)))
    differences = [d for effect in results.effects for d in effect.differences]
    assert [float(line["difference"]) for line in lines] == pytest.approx(differences, rel=1e-5)
    assert {line["variant"] for line in lines} == set(made.TWELVE) - {"modern"}
    text = saved(tab, "Download the data of Loss against learning rate as CSV").decode()
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [float(x["loss"]) for x in lines] == pytest.approx(
        [r.loss for r in results.runs], rel=1e-5
    )
    text = saved(tab, "Download the data of Held-out loss as CSV").decode()
    assert text.splitlines()[0] == "variant,step,tokens,flops,seconds,mean,lowest,highest,seeds"


@pytest.mark.parametrize("results", [made.incomplete, made.nothing_yet, made.fixed_rates])
def test_whatever_was_found_is_drawn(visitor: Visitor, tmp_path: Path, results: Any) -> None:
    tab = visitor.open(write_page(results(), tmp_path), 390, color_scheme="dark")
    assert tab.locator("h1").is_visible()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert all(of_plots(tab, "p.querySelectorAll('.scatterlayer .point').length > 0"))
    tab.close()


def test_nothing_was_requested_and_nothing_complained(visitor: Visitor, tab: Any) -> None:
    visitor.check()
