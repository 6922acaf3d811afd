"""Runs in a line each, damaged ones among them."""

import os
from pathlib import Path

import pytest

from archwright.cli import main
from archwright.runs import RunFolder
from archwright.runs.summaries import summaries
from archwright.spec.read import load_run

DAY = 86_400
AT = {"kind": "eval", "tokens": 2048, "seconds": 1.0, "num_tokens": 9, "num_bytes": 9}


def begin(name: str, age: int, *changes: str) -> RunFolder:
    """Make a run in runs/ that was last written some days before the others."""
    run = RunFolder.create(f"runs/{name}", load_run("modern").override(*changes))
    run.write_environment({"num_parameters": 3_400_000})
    for step, bits in ((10, 4.5), (20, 3.25)):
        reached = {"nats_per_token": 2 * bits, "perplexity": 1.0, "bits_per_byte": bits}
        run.append({**AT, **reached, "step": step, "tokens": 100 * step})
    _age(run, age)
    return run


def _age(run: RunFolder, days: int) -> None:
    for path in (run.spec_file, run.metrics_file, run.environment_file):
        if path.is_file():
            os.utime(path, (1_700_000_000 - days * DAY,) * 2)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")


def test_the_newest_run_is_first_and_says_what_it_reached_last() -> None:
    begin("old", 9)
    begin("new", 1, 'data.text=["corpus/notes.txt", "stdlib"]')
    begin("middle", 5).append({"kind": "event", "name": "finished", "step": 20})
    _age(RunFolder("runs/middle"), 5)
    found = summaries()
    assert [run.path.name for run in found] == ["new", "middle", "old"]
    assert [run.state for run in found] == ["open", "finished", "open"]
    new = found[0]
    assert (new.model, new.num_parameters, new.tokens) == ("modern", 3_400_000, 2000)
    assert (new.loss, new.bits_per_byte) == (6.5, 3.25)
    assert new.text == "notes.txt, stdlib"
    assert found[1].text == "stdlib"


def damaged(name: str) -> RunFolder:
    run = begin(name, 3)
    if name == "metrics":
        run.metrics_file.write_text(
            '{"kind": oops}\n' + run.metrics_file.read_text("utf-8"), "utf-8"
        )
    elif name == "folder":
        run.metrics_file.unlink()
        run.metrics_file.mkdir()
    elif name == "spec":
        run.spec_file.write_text("model = = 3\n", "utf-8")
    elif name == "tables":
        run.spec_file.write_text("format = 2\nmodel = 3\ndata = [1]\n", "utf-8")
    elif name == "environment":
        run.environment_file.write_text("[1, 2", "utf-8")
    _age(run, 3)
    return run


@pytest.mark.parametrize("name", ["metrics", "folder", "spec", "environment"])
def test_a_damaged_run_breaks_no_list(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    begin("sound", 9)
    damaged(name)
    found = {run.path.name: run for run in summaries()}
    assert (found["sound"].state, found[name].state) == ("open", "damaged")
    assert found[name].damage
    if name != "folder":
        assert found[name].tokens == 2000
    assert main(["list", "runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == [f"runs/{name}", "runs/sound"]
    assert lines[-1].startswith(f"runs/{name}: ")


def test_tables_that_are_none_are_no_words() -> None:
    damaged("tables")
    assert [(run.model, run.text, run.bits_per_byte) for run in summaries()] == [("", "", 3.25)]


def test_list_runs(capsys: pytest.CaptureFixture[str]) -> None:
    begin("two", 1)
    RunFolder.create("runs/new", load_run("modern"))
    assert main(["list", "runs"]) == 0
    head, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head[:2] == ["run", "state"]
    path = str(Path("runs/new"))
    assert rows[0][:8] == [path, "open", "-", "-", "modern", "-", "-", "stdlib"]
    reached = ["3.250", "6.5000", "modern", "3.4M", "2k", "stdlib"]
    assert rows[1][:8] == [str(Path("runs/two")), "open", *reached]
    assert rows[1][8].startswith("2023-11-1")
