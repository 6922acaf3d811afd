"""The columns of a run's metrics."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archwright.runs import RunFolder
from archwright.runs.columns import RunHistory
from archwright.runs.load import OpenRun
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec

Line = dict[str, Any]


def at(step: int) -> Line:
    return {"step": step, "tokens": 100 * step, "seconds": step / 2}


def trained(step: int, **more: Any) -> Line:
    return {"kind": "train", **at(step), "loss": 5.0 - step, "lr": 1e-3, **more}


def evaluated(step: int, loss: float | None, **more: Any) -> Line:
    text = {"perplexity": 2.0, "num_tokens": 64, "num_bytes": 200}
    return {"kind": "eval", **at(step), "nats_per_token": loss, **text, **more}


RECORDS = [
    {"kind": "event", "name": "started", **at(0)},
    trained(1, grad_norm=0.5),
    trained(2, grad_norm=None),
    evaluated(2, 3.5),
    trained(3, grad_norm=0.25, router_loss=0.125),
    evaluated(3, 2.5),
    evaluated(3, 2.25, name="final", judged_nats=[1.0]),
    {"kind": "baseline", **at(3), "name": "xz -9e", "bits_per_byte": 2.0},
]


def test_a_row_is_a_step_and_what_it_lacks_is_nan() -> None:
    history = RunHistory.from_records(RECORDS)
    assert [*history] == [
        *("step", "tokens", "seconds", "loss", "lr", "grad_norm", "held_out_loss"),
        *("held_out_perplexity", "held_out_num_tokens", "held_out_num_bytes", "router_loss"),
    ]
    assert history["step"].tolist() == [1, 2, 3]
    assert history["tokens"].tolist() == [100, 200, 300]
    assert history["step"].dtype == history["tokens"].dtype == np.int64
    assert history["seconds"].tolist() == [0.5, 1.0, 1.5]
    assert history["loss"].tolist() == [4.0, 3.0, 2.0]
    np.testing.assert_array_equal(history["grad_norm"], [0.5, math.nan, 0.25])
    np.testing.assert_array_equal(history["router_loss"], [math.nan, math.nan, 0.125])
    np.testing.assert_array_equal(history["held_out_loss"], [math.nan, 3.5, 2.25])
    assert {len(column) for column in history.values()} == {3}


def test_evaluations_are_the_rows_that_have_one() -> None:
    found = RunHistory.from_records(RECORDS).evaluations
    assert found["step"].tolist() == [2, 3]
    assert found["held_out_loss"].tolist() == [3.5, 2.25]
    assert found["loss"].tolist() == [3.0, 2.0]


def test_a_run_without_steps_has_its_usual_columns() -> None:
    history = RunHistory.from_records(RECORDS[:1])
    assert {"step", "loss", "held_out_loss"} <= set(history)
    assert history["loss"].shape == (0,)
    assert len(history.evaluations["step"]) == 0


def test_an_unknown_column_names_the_nearest() -> None:
    history = RunHistory.from_records(RECORDS)
    with pytest.raises(KeyError, match='Did you mean "held_out_loss"'):
        history["held_out_los"]
    assert "nothing" not in history
    assert history.get("nothing") is None


def test_a_data_frame_has_the_same_columns() -> None:
    pandas = pytest.importorskip("pandas")
    history = RunHistory.from_records(RECORDS)
    frame = history.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert [*frame.columns] == [*history]
    assert frame["held_out_loss"].dropna().tolist() == [3.5, 2.25]


def test_without_pandas_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"^to_pandas: pandas is not installed; run: pip install"):
        RunHistory.from_records(RECORDS).to_pandas()


@pytest.fixture
def run(tmp_path: Path) -> OpenRun:
    folder = RunFolder.create(tmp_path / "run", RunSpec(name="mine"))
    folder.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in RECORDS))
    nothing: Any = None
    return OpenRun(folder, folder.spec, nothing, nothing)


def test_an_open_run_has_its_history_and_is_short(run: OpenRun) -> None:
    assert run.history()["loss"].tolist() == [4.0, 3.0, 2.0]
    facts = "state not finished, steps 3, tokens 300, held-out loss 2.2500"
    assert repr(run) == f"OpenRun({run.folder.path}: {facts})"
    html = run._repr_html_()
    assert "2.2500" in html
    assert "RunSpec(mine: " in html


def test_its_page_is_shown_or_missed(run: OpenRun) -> None:
    with pytest.raises(UserError, match=r"has no page; archwright\.write_report"):
        run.report()
    run.folder.report_file.write_text("<p>", "utf-8")
    assert Path(run.report()) == run.folder.report_file
    assert "&lt;p&gt;" in run.report(inline=True)._repr_html_()
