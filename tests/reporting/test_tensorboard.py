"""The metrics in TensorBoard's own files, read back with TensorBoard."""

import sys
from typing import Any

import pytest

from archwright.reporting.tensorboard import TensorBoardLog
from archwright.spec.errors import UserError


def test_every_number_is_there(made: Any) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = made.finished(40)
    with TensorBoardLog(made.folder / "log") as log:
        for line in run.metrics():
            log.write(line)
    events = accumulator.EventAccumulator(str(made.folder / "log"), {"scalars": 0})
    events.Reload()
    for kind, group, key in (
        ("train", "train", "loss"),
        ("train", "train", "lr"),
        ("eval", "held_out", "bits_per_byte"),
    ):
        expected = [(x["step"], x[key]) for x in run.metrics() if x["kind"] == kind]
        found = [(event.step, event.value) for event in events.Scalars(f"{group}/{key}")]
        assert [step for step, _ in found] == [step for step, _ in expected]
        assert [v for _, v in found] == pytest.approx([v for _, v in expected], rel=1e-6)
    assert events.Scalars("baseline/xz -9e/bits_per_byte")[0].value == pytest.approx(1.71)
    texts = events.Tensors("events/text_summary")
    assert texts[-1].step == 40
    assert b"finished" in texts[-1].tensor_proto.string_val[0]


def test_what_is_null_is_left_out(made: Any) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = made.folder / "log"
    with TensorBoardLog(folder) as log:
        log.write({"kind": "train", **made.at(1), "loss": None, "lr": 1e-3})
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    assert events.Tags()["scalars"] == ["train/lr"]


def test_without_the_extra_it_says_how_to_install_it(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(UserError, match=r"pip install 'archwright\[tensorboard\]'"):
        TensorBoardLog(made.folder / "log")
