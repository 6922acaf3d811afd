"""Metrics as CSV and for Weights & Biases, whose calls a fake records; TensorBoard has tests of its own."""

import csv
import sys
from pathlib import Path
from typing import Any

import pytest

from archwright.reporting import loggers as module
from archwright.reporting.csv_log import COLUMNS
from archwright.reporting.loggers import LOGGERS, check_installed, loggers
from archwright.reporting.wandb_log import ID_FILE, WandbLog, run_id
from archwright.runs import RunFolder
from archwright.spec import run_spec
from archwright.spec.errors import UserError
from tests.fake_wandb import FakeWandb


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for name in ("WANDB_PROJECT", "WANDB_NAME"):
        monkeypatch.delenv(name, raising=False)
    return fake


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def test_every_name_of_a_run_has_a_logger() -> None:
    assert (*LOGGERS,) == run_spec.LOGGERS


def test_csv_has_a_row_for_each_step_and_evaluation(made: Any) -> None:
    run = made.finished(40, "loggers=csv")
    with loggers(run, []) as log:
        log({"kind": "train", **made.at(41), "loss": 2.5, "lr": None, "tokens_per_second": 1e4})
        log({"kind": "event", "name": "finished", **made.at(41)})
    for kind in ("train", "eval"):
        found = rows(run.path / "csv" / f"{kind}.csv")
        expected = [r for r in run.metrics() if r["kind"] == kind]
        assert (*found[0],) == COLUMNS[kind]
        for row, record in zip(found, expected, strict=False):
            given = {key: float(value) for key, value in row.items() if value}
            assert given == {key: record[key] for key in COLUMNS[kind] if key in record}
        assert len(found) == len(expected) + (kind == "train")
    last = rows(run.path / "csv" / "train.csv")[-1]
    assert (last["step"], last["loss"], last["lr"]) == ("41", "2.5", "")


def test_csv_is_cut_back_with_the_run(made: Any) -> None:
    run = made.finished(40, "loggers=csv")
    with loggers(run, []):
        pass
    run.truncate_to(20)
    with loggers(run, []) as log:
        log({"kind": "train", **made.at(21), "loss": 2.5})
    steps = [int(row["step"]) for row in rows(run.path / "csv" / "train.csv")]
    assert steps == list(range(1, 22))


def test_wandb_gets_every_number_with_its_step(made: Any, wandb: FakeWandb) -> None:
    run = made.finished(40, "loggers=wandb")
    with loggers(run, []) as log:
        for record in run.metrics():
            log(record)
    (start,) = wandb.started
    assert (start["project"], start["name"], start["resume"]) == ("archwright", "demo", "allow")
    assert start["dir"] == str(run.path)
    assert start["config"]["model.dim"] == run.spec.model.dim
    assert wandb.axes == [("step", None), ("*", "step")]
    assert wandb.ended == [0]
    for kind, key, name in (
        ("train", "loss", "train/loss"),
        ("train", "lr", "train/lr"),
        ("eval", "nats_per_token", "held_out/nats_per_token"),
    ):
        expected = [(r["step"], r["tokens"], r[key]) for r in run.metrics() if r["kind"] == kind]
        found = [(row["step"], row["tokens"], row[name]) for row in wandb.rows if name in row]
        assert found == expected
    assert any("baseline/xz -9e/bits_per_byte" in row for row in wandb.rows)


def test_a_run_that_goes_on_is_one_run_at_wandb_with_no_row_twice(
    made: Any, wandb: FakeWandb
) -> None:
    run: RunFolder = made.finished(40, "loggers=wandb")
    records = run.metrics()
    before = [r for r in records if r["step"] <= 30]

    def interrupted() -> None:
        with loggers(run, []) as log:
            for record in before:
                log(record)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with loggers(run, before) as log:
        for record in (r for r in records if r["step"] > 20):
            log(record)
    first, second = wandb.started
    assert first["id"] == second["id"] == (run.path / "wandb" / ID_FILE).read_text()
    assert wandb.ended == [1, 0]
    steps = [row["step"] for row in wandb.rows if "train/loss" in row]
    assert steps == list(range(1, 41))
    evaluated = [row["step"] for row in wandb.rows if "held_out/perplexity" in row]
    assert evaluated == [r["step"] for r in records if r["kind"] == "eval"]


def test_two_runs_are_two_at_wandb(made: Any, wandb: FakeWandb) -> None:
    for name in ("one", "two"):
        with loggers(made.finished(3, "loggers=wandb", name=name), []):
            pass
    assert len({start["id"] for start in wandb.started}) == 2


def test_wandbs_own_variables_name_project_and_run(
    made: Any, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setenv("WANDB_NAME", "first try")
    WandbLog(made.finished(3), [])
    assert (wandb.started[0]["project"], wandb.started[0]["name"]) == ("mine", "first try")


def test_what_wandb_refuses_is_one_line(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb(refuses="No API key configured."))
    with pytest.raises(
        UserError, match=r"^loggers: wandb: No API key configured\. Log in.*offline$"
    ):
        WandbLog(made.finished(3), [])


def test_libraries_that_are_missing_are_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed(["csv"])
    for name in module.LIBRARIES.values():
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError) as caught:
        check_installed(["csv", "wandb", "tensorboard"])
    assert caught.value.lines == tuple(
        f"loggers: {name} is not installed; run: pip install 'archwright[{name}]', or leave it out: loggers=csv"
        for name in ("wandb", "tensorboard")
    )


@pytest.mark.slow
def test_wandb_itself_takes_the_calls(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into files, without a network."""
    pytest.importorskip("wandb")
    for name, value in (("MODE", "offline"), ("SILENT", "true"), ("DIR", str(made.folder))):
        monkeypatch.setenv(f"WANDB_{name}", value)
    run = made.finished(10, "loggers=wandb")
    with loggers(run, []) as log:
        for record in run.metrics():
            log(record)
    (file,) = (run.path / "wandb").glob("offline-run-*/*.wandb")
    content = file.read_bytes()
    assert b"train/loss" in content
    assert b"held_out/nats_per_token" in content


def test_a_file_of_the_user_is_no_log(made: Any) -> None:
    run = made.finished(3, "loggers=csv,tensorboard")
    mine = run.path / "csv" / "train.csv"
    mine.parent.mkdir()
    mine.write_text("name,marks\n")
    with pytest.raises(UserError, match=r"train\.csv cannot be written: found a file that"):
        LOGGERS["csv"](run, [])
    assert mine.read_text() == "name,marks\n"
    notes = run.path / "tensorboard" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    LOGGERS["tensorboard"](run, [])
    assert notes.read_text() == "mine"


def test_what_a_link_leads_to_is_not_sent(made: Any) -> None:
    run = made.finished(3)
    (run.path / "secret").write_text("secret")
    (run.path / "wandb").mkdir()
    (run.path / "wandb" / ID_FILE).symlink_to(run.path / "secret")
    with pytest.raises(UserError, match="found a link"):
        run_id(run)
