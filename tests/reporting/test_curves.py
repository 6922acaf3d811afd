"""Curves of a run: against which axes, in which units, with which marks."""

from typing import Any

import numpy as np
import pytest

from archwright.reporting import curves
from archwright.reporting.document import SMOOTHING
from archwright.reporting.history import read_history
from archwright.reporting.overlay import overlay_page
from archwright.reporting.thinning import smoothed


def test_curves_can_be_drawn_against_tokens_steps_flops_and_time(made: Any) -> None:
    history = read_history(made.finished(100))
    assert [axis.column for axis in curves.axes([history])] == [
        "tokens",
        "step",
        "flops",
        "seconds",
    ]
    for chart in (
        curves.loss_chart(history),
        *curves.bits_charts(history),
        *curves.step_charts(history),
    ):
        for trace in chart.traces:
            along = trace["along"]
            np.testing.assert_allclose(along["flops"], np.array(along["tokens"]) * 8_912_896.0)
            np.testing.assert_allclose(along["tokens"], np.array(along["step"]) * 4096)
            assert {len(column) for column in along.values()} == {len(trace["y"])}


def test_without_a_flop_count_there_is_no_such_axis(made: Any) -> None:
    history = read_history(made.finished(30, environment={}))
    assert [axis.column for axis in curves.axes([history])] == ["tokens", "step", "seconds"]
    assert "flops" not in curves.loss_chart(history).traces[0]["along"]


def test_compressors_stand_where_the_model_would_equal_them(made: Any) -> None:
    lines = [
        *made.steps(60, evaluations=0),
        {"kind": "eval", **made.at(60), **made.evaluation(2.5)},
        *made.baselines(60, gzip=made.evaluation(2.5)["bits_per_byte"]),
    ]
    levels = curves.loss_chart(read_history(made.run(lines))).layout["shapes"]
    assert levels[0]["y0"] == pytest.approx(2.5)
    assert "gzip -9" in levels[0]["label"]["text"]
    assert levels[0]["label"]["textposition"] == "start"  # the curve ends near it


@pytest.mark.parametrize(("num_bytes", "apart"), [(1_000_000, False), (15_000_000, True)])
def test_a_final_evaluation_of_more_text_is_a_mark_of_its_own(
    made: Any, num_bytes: int, apart: bool
) -> None:
    """What it reads is harder or easier than the sample of the curve, so that a line would jump."""
    final = {"kind": "eval", **made.at(60), **made.evaluation(2.6, num_bytes)}
    history = read_history(made.run([*made.steps(40), final]))
    held_out = next(c for c in overlay_page([history]).charts if c.name == "held-out")
    loss = curves.loss_chart(history)
    for traces in (
        [trace for trace in loss.traces if trace["name"].startswith("held out")],
        *(chart.traces for chart in (*curves.bits_charts(history), held_out)),
    ):
        assert len(traces) == 1 + apart
        assert len(traces[0]["y"]) == 9 - apart
        for mark in traces[1:]:
            assert (mark["mode"], len(mark["y"])) == ("markers", 1)
            assert mark["along"]["step"] == [60]
            assert mark["marker"]["symbol"] == "diamond-open"


def test_spikes_and_interruptions_are_marked(made: Any) -> None:
    lines = [*made.steps(50), made.event("resumed", 30), made.event("finished", 50)]
    history = read_history(made.run(lines))
    chart = curves.loss_chart(history)
    spikes = next(trace for trace in chart.traces if trace["name"] == "loss spike")
    assert spikes["along"]["step"].tolist() == [20]
    assert spikes["y"][0] == history.train["loss"][19]
    assert [(mark["text"], mark["along"]["tokens"]) for mark in chart.marks] == [
        ("resumed", 30 * 4096)
    ]


def test_what_is_all_zero_or_not_recorded_is_not_drawn(made: Any) -> None:
    lines = [{"kind": "train", **made.at(1), "loss": 3.0, "z_loss": 0.0, "lr": 1e-3}]
    names = [chart.name for chart in curves.step_charts(read_history(made.run(lines)))]
    assert names == ["lr"]


def test_bits_per_byte_are_a_curve_beside_compressors(made: Any) -> None:
    run = made.finished(80)
    (chart,) = curves.bits_charts(read_history(run))
    recorded = [line for line in run.metrics() if line["kind"] == "eval"]
    assert chart.traces[0]["y"] == [line["bits_per_byte"] for line in recorded]
    assert chart.traces[0]["along"]["step"] == [line["step"] for line in recorded]
    assert [(s["y0"], s["label"]["text"]) for s in chart.layout["shapes"]] == [
        (2.04, "gzip -9"),
        (1.71, "xz -9e"),
    ]


def test_an_objective_without_bits_per_byte_has_no_such_curve(made: Any) -> None:
    evaluation = made.evaluation(2.5)
    del evaluation["bits_per_byte"]
    lines = [*made.steps(9, evaluations=0), {"kind": "eval", **made.at(9), **evaluation}]
    assert curves.bits_charts(read_history(made.run(lines))) == []


def test_each_weight_of_smoothing_is_a_curve_over_the_steps(made: Any) -> None:
    history = read_history(made.finished(60))
    raw, *means, _, _ = curves.loss_chart(history).traces
    assert raw["raw"]
    assert [trace["smoothing"] for trace in means] == list(SMOOTHING[1:])
    for trace in means:
        expected = smoothed(history.train["loss"], trace["smoothing"])
        np.testing.assert_array_equal(trace["y"], expected[trace["along"]["step"] - 1])
    (lr,) = next(c for c in curves.step_charts(history) if c.name == "lr").traces
    assert "smoothing" not in lr
    assert "raw" not in lr
