"""The page of costs: all that a plan says is on it, and what it draws is what was counted."""

import itertools
import math

import pytest

from archwright.planning.plans import Plan, plan
from archwright.planning.workload import workload
from archwright.reporting.costs import cost_page
from archwright.reporting.document import Bars, Chart, Page, Table
from archwright.reporting.plan_rows import part_rows
from archwright.spec.read import load_run


@pytest.fixture(scope="module")
def found() -> dict[str, Plan]:
    work = workload(hardware="h200", devices=8, context=4096)
    return {name: plan(load_run(name), work) for name in ("llama-3-8b", "mixtral-8x7b")}


def test_points_lie_on_the_roofline(found: dict[str, Plan]) -> None:
    charts = {c.name: c for c in cost_page(found).charts}
    hardware = found["llama-3-8b"].workload.hardware
    for trace in charts["roofline-0"].traces[1:]:
        for x, y in zip(trace["x"], trace["y"], strict=True):
            assert y == pytest.approx(min(989.4e12, x * hardware.memory_bandwidth))


def test_bars_are_the_memory_of_the_plan(found: dict[str, Plan]) -> None:
    page = cost_page({"llama-3-8b": found["llama-3-8b"]})
    (bars,) = [b for s in page.sections for b in s.blocks if isinstance(b, Bars)]
    values = {bar.label: bar.value for bar in bars.bars}
    setup = found["llama-3-8b"].setup
    assert setup is not None
    assert values["all"] == setup.memory.total
    assert sum(v for k, v in values.items() if k not in ("all", "the device")) == pytest.approx(
        values["all"]
    )


def test_strategies_are_those_of_the_plan(found: dict[str, Plan]) -> None:
    page = cost_page(found)
    (section,) = [s for s in page.sections if s.title == "Parallelism strategies"]
    for table, each in zip(section.blocks, found.values(), strict=True):
        assert isinstance(table, Table)
        assert [row.cells[0] for row in table.rows] == [way.split.name for way in each.ways]
        fits = [not each.workload.why_not(way) for way in each.ways]
        assert [row.cells[-1] == "yes" for row in table.rows] == fits
        chosen = [row.cells[0] for row in table.rows if row.mark]
        assert chosen == ([] if each.setup is None else [each.setup.split.name])


def tables(page: Page, title: str) -> list[Table]:
    (section,) = (section for section in page.sections if section.title == title)
    return [block for block in section.blocks if isinstance(block, Table)]


def test_models_side_by_side_are_named_on_a_phone(found: dict[str, Plan]) -> None:
    (table, *_) = tables(cost_page(found), "Model")
    assert "many" in cost_page(found).html().partition("Model costs.")[0][-200:]
    assert table.even


def test_the_page_says_what_the_terminal_does(found: dict[str, Plan]) -> None:
    """Step, time, device hours, energy, prefill and decode, and the parts, of one model and of two."""
    one = {"llama-3-8b": found["llama-3-8b"]}
    for plans in (one, found):
        page = cost_page(plans)
        (training,), (serving,) = tables(page, "Training"), tables(page, "Serving")
        labels = {row.cells[0] for row in (*training.rows, *serving.rows)}
        assert labels >= {
            "step",
            "training time",
            "device hours",
            "energy",
            "prefill",
            "decode",
            "decode, full batch",
        }
        assert len(training.head) == len(plans) + 2
        assert all(row.cells[-1] for row in training.rows)
        _, *parts = tables(page, "Model")
        for table, each in zip(parts, plans.values(), strict=True):
            assert [row.cells for row in table.rows] == [*part_rows(each)]


def test_each_point_of_the_roofline_is_labelled_once(found: dict[str, Plan]) -> None:
    """By the numbers of the table below it; labels stand apart."""
    page = cost_page(found)
    charts = {chart.name: chart for chart in page.charts}
    _, *by_model = tables(page, "Roofline")
    for number, (table, each) in enumerate(zip(by_model, found.values(), strict=True)):
        *labels, ridge_point = charts[f"roofline-{number}"].layout["annotations"]
        assert ridge_point["text"].startswith("ridge point, ")
        numbered = {row.cells[0].split("  ")[0] for row in table.rows}
        assert {n for label in labels for n in label["text"].split(", ")} == numbered
        places = [label["x"] for label in labels]
        ends = charts[f"roofline-{number}"].traces[0]["x"]
        widest = math.log10(ends[-1] / ends[0])
        assert min(b - a for a, b in itertools.pairwise(places)) > 0.02 * widest
        bound = {row.cells[0].split("  ")[1]: row.cells[-1] for row in table.rows}
        assert "memory-bound" in bound["feed-forward"]
        assert each.operators["decode"]
        assert "compute-bound" in table.rows[0].cells[1]


def test_what_is_unusual_is_on_the_page(found: dict[str, Plan]) -> None:
    assert "Unusual" not in {section.title for section in cost_page(found).sections}
    run = load_run("llama-3-8b").override("model.attention.num_kv_heads=1")
    each = plan(run, workload(hardware="h200", devices=8))
    (section,) = [s for s in cost_page({"one": each}).sections if s.title == "Unusual"]
    (table,) = section.blocks
    assert isinstance(table, Table)
    assert [row.cells for row in table.rows] == [("one", each.suspicions[0].line, "strong")]


def test_speeds_end_with_those_of_the_plan(found: dict[str, Plan]) -> None:
    charts: dict[str, Chart] = {c.name: c for c in cost_page(found).charts}
    for trace, each in zip(charts["by-batch"].traces, found.values(), strict=True):
        assert each.serving is not None
        assert trace["x"][-1] == each.serving.largest_batch
        assert trace["y"][0] == each.serving.decode_tokens_per_second
        assert trace["y"][-1] == each.serving.decode_tokens_per_second_at_largest_batch


def test_the_page_escapes_names(found: dict[str, Plan]) -> None:
    html = cost_page({"</script><script>x": found["llama-3-8b"]}).html()
    assert "<script>x" not in html
