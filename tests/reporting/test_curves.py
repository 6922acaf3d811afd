"""Curves: nothing that stands out is lost when they are thinned, and means are means."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archwright.reporting import curves
from archwright.reporting.history import read_history

numbers = st.floats(-1e6, 1e6) | st.just(float("nan"))


@given(st.lists(numbers, min_size=1, max_size=300), st.integers(1, 20))
def test_thinning_keeps_ends_and_extremes(values: list[float], buckets: int) -> None:
    array = np.array(values)
    kept = curves.thin(array, buckets)
    assert kept[0] == 0
    assert kept[-1] == len(array) - 1
    assert (np.diff(kept) > 0).all()
    assert len(kept) <= 2 * buckets + 2
    finite = array[np.isfinite(array)]
    if len(finite):
        assert np.nanmax(array[kept]) == finite.max()
        assert np.nanmin(array[kept]) == finite.min()


def test_short_curves_are_kept_whole() -> None:
    assert curves.thin(np.arange(9.0), buckets=5).tolist() == list(range(9))


def test_smoothing_is_a_centred_mean_that_leaves_gaps_out() -> None:
    values = np.random.default_rng(0).normal(size=60)
    values[[7, 30]] = np.nan, np.inf
    expected = []
    for i in range(60):
        near = [v for v in values[max(0, i - 3) : i + 4] if np.isfinite(v)]
        expected.append(sum(near) / len(near))
    np.testing.assert_allclose(curves.smoothed(values, 7), expected, atol=1e-12)


@pytest.mark.parametrize("steps", [0, 1, 49, 50, 1234, 100_000])
def test_smoothing_windows_are_odd(steps: int) -> None:
    window = curves.smoothing_window(steps)
    assert window % 2 == 1
    assert window <= max(1, 0.021 * steps + 2)


def test_curves_can_be_drawn_against_tokens_flops_and_time(made: Any) -> None:
    history = read_history(made.finished(100))
    assert [axis.column for axis in curves.axes(history)] == ["tokens", "flops", "seconds"]
    for chart in (curves.loss_chart(history), *curves.step_charts(history)):
        for trace in chart.traces:
            along = trace["along"]
            np.testing.assert_allclose(along["flops"], np.array(along["tokens"]) * 8_912_896.0)
            np.testing.assert_allclose(along["tokens"], np.array(along["step"]) * 4096)
            assert {len(column) for column in along.values()} == {len(trace["y"])}


def test_without_a_flop_count_there_is_no_such_axis(made: Any) -> None:
    history = read_history(made.finished(30, environment={}))
    assert [axis.column for axis in curves.axes(history)] == ["tokens", "seconds"]
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


@pytest.mark.parametrize(
    ("seconds", "unit", "divide"),
    [(300, "seconds", 1), (3600, "minutes", 60), (1e5, "hours", 3600)],
)
def test_units_of_time(seconds: float, unit: str, divide: float) -> None:
    *_, time = curves.axes_up_to(seconds, "time")
    assert (time.title, time.divide) == (f"time, {unit}", divide)
