"""What probes saw, as it is drawn: every value in its place, whatever was seen."""

import json
import math
from typing import Any

import numpy as np
import pytest

from archwright.reporting import heat_maps
from archwright.reporting.document import Chart
from archwright.reporting.history import read_history
from archwright.reporting.page import run_page, write_report
from archwright.runs import RunFolder

KINDS = ("attention.query", "attention.out", "feedforward.up")


def values(step: int, layers: int = 3) -> dict[str, dict[str, float | None]]:
    """Numbers that tell where they belong."""
    rows = [f"layers.{i}.{kind}" for i in range(layers) for kind in KINDS]
    matrices = ["embedding", *rows, "head"]
    return {
        "gradient_norm": {f"layers.{i}": 10.0 ** (i - 3) * step for i in range(layers)},
        "attention_entropy": {f"layers.{i}.attention": i + step / 100 for i in range(layers)},
        "dead_activations": {f"layers.{i}.feedforward": 0.0 for i in range(layers)},
        "log_z": {"head": 7.0 + step},
        "weight_rms": {row: (i + 1) / 100 for i, row in enumerate(matrices)},
        "of_a_user": {f"layers.{i}": None if i == 1 else 1.0 for i in range(layers)},
    }


def probed(made: Any, steps: list[int], layers: int = 3) -> RunFolder:
    """Write a run with probes at some steps."""
    run: RunFolder = made.finished(max(steps))
    lines = [{"kind": "probes", **made.at(s), "values": values(s, layers)} for s in steps]
    run.probes_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def charts(run: RunFolder) -> dict[str, Chart]:
    return {chart.name: chart for chart in heat_maps.heat_maps(read_history(run))}


def test_every_value_is_in_its_cell(made: Any) -> None:
    steps = [1, 10, 20]
    drawn = charts(probed(made, steps))
    (trace,) = drawn["gradient-norm"].traces
    assert trace["y"] == ["layer 0", "layer 1", "layer 2"]
    assert trace["along"]["step"] == steps
    assert trace["z"].tolist() == [[10.0 ** (i - 3) * s for s in steps] for i in range(3)]
    (trace,) = drawn["log-z"].traces
    assert (trace["type"], trace["y"].tolist()) == ("scatter", [8.0, 17.0, 27.0])


def test_like_matrices_of_all_layers_stand_together(made: Any) -> None:
    (trace,) = charts(probed(made, [1]))["weight-rms"].traces
    expected = [f"layer {i} {kind}" for kind in KINDS for i in range(3)]
    assert trace["y"] == ["embedding", *expected, "head"]
    where = dict(zip(trace["y"], trace["z"][:, 0], strict=True))
    rows = list(values(1)["weight_rms"])
    assert where["layer 2 feedforward.up"] == (rows.index("layers.2.feedforward.up") + 1) / 100
    axis = charts(probed(made, [1]))["weight-rms"].layout["yaxis"]
    labels = dict(zip(axis["ticktext"], axis["tickvals"], strict=True))
    assert labels == {
        "embedding": 0,
        "attention query": 2,
        "attention out": 5,
        "feedforward up": 8,
        "head": 10,
    }


def test_the_only_probed_step_is_named_without_fractions(made: Any) -> None:
    for name in ("gradient-norm", "log-z"):
        assert charts(probed(made, [4]))[name].layout["xaxis"] == {"type": "category"}
        assert "xaxis" not in charts(probed(made, [4, 8]))[name].layout


def test_pictures_come_in_their_order_and_a_users_last(made: Any) -> None:
    drawn = charts(probed(made, [1, 2]))
    known = [name.replace("_", "-") for name in heat_maps.PICTURES]
    assert list(drawn) == [name for name in known if name in drawn] + ["of-a-user"]
    assert drawn["of-a-user"].title == "Of a user"
    assert np.isnan(drawn["of-a-user"].traces[0]["z"][1]).all()


def test_every_picture_says_what_is_healthy() -> None:
    for picture in heat_maps.PICTURES.values():
        assert picture.note.startswith("Healthy: ")
        assert " Warning: " in picture.note


def test_a_run_without_probes_has_no_section(made: Any) -> None:
    assert "Probes" not in [s.title for s in run_page(read_history(made.finished(20))).sections]


@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize("steps", [[1], [1, 20], list(range(1, 1001))])
@pytest.mark.parametrize("layers", [1, 40])
def test_any_number_of_steps_and_layers_has_a_page(
    made: Any, steps: list[int], layers: int
) -> None:
    run = probed(made, steps, layers)
    drawn = charts(run)
    for chart in drawn.values():
        columns = chart.traces[0]["along"]["step"]
        assert len(columns) <= heat_maps.COLUMNS
        assert (columns[0], columns[-1]) == (steps[0], steps[-1])
    assert bool(drawn["weight-rms"].height) == (layers == 40)
    html = write_report(run).read_text()
    assert 'id="probes"' in html
    assert "NaN" not in html.partition('id="page-data">')[2].partition("</script>")[0]


@pytest.mark.parametrize(
    ("numbers", "marks"),
    [
        ([1e-6, 1e3], [1e-6, 1e-4, 1e-2, 1.0, 100.0]),
        ([0.02, 3.0], [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0]),
        ([0.9, 2.5], [1.0, 1.5, 2.0]),
        ([0.31, 0.33], [0.31, math.sqrt(0.31 * 0.33), 0.33]),
        ([0.0, -1.0, math.nan], []),
        ([0.5], [0.5]),
    ],
)
def test_marks_of_decades(numbers: list[float], marks: list[float]) -> None:
    found = heat_maps.decade_marks(np.array([numbers]))
    assert len(found) <= 7
    assert found == pytest.approx(marks)
