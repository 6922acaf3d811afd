"""The report of a run: complete for every kind of run, and of a sensible size."""

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from archwright.reporting import sections
from archwright.reporting.history import read_history
from archwright.reporting.page import run_page, write_report
from archwright.runs import RunFolder
from archwright.spec.read import load_run
from archwright.spec.run_spec import PartsFile


def titles(run: RunFolder) -> list[str]:
    """Return the titles of a report's sections."""
    return [section.title for section in run_page(read_history(run)).sections]


EVERY_SECTION = [
    "Numbers",
    "Curves",
    "Sample",
    "Architecture",
    "Training",
    "Events",
    "Machine",
    "Reproduce",
]


def test_a_finished_run_has_every_section(made: Any) -> None:
    assert titles(made.finished(60)) == EVERY_SECTION


def test_an_empty_run_has_what_there_is(made: Any) -> None:
    run = made.run([], sample="", environment={})
    assert titles(run) == ["Numbers", "Architecture", "Training", "Reproduce"]
    assert "Nothing trained yet" in write_report(run).read_text()


@pytest.mark.parametrize("steps", [1, 2, 51])
def test_short_runs_have_a_page(made: Any, steps: int) -> None:
    html = write_report(made.run(list(made.steps(steps, evaluations=0)))).read_text()
    assert "not yet evaluated on held-out text" in html
    assert "This run has not finished" in html


def test_a_diverged_run_has_a_page(made: Any) -> None:
    lines = [{"kind": "train", **made.at(step), "loss": None} for step in range(1, 60)]
    html = write_report(
        made.run([*lines, made.event("stopped", 59, "the loss became nan")])
    ).read_text()
    assert "The training loss is not finite" in html
    assert "the loss became nan" in html


def test_the_report_is_written_whole_and_in_its_place(made: Any) -> None:
    run = made.finished(30)
    assert write_report(run) == run.report_file == Path(run.path / "report.html")
    first = run.report_file.read_text()
    write_report(run)
    assert run.report_file.read_text() == first
    assert "</html>\n<!-- archwright, SHA-256: " in first


def test_the_numbers_are_those_of_the_run(made: Any) -> None:
    run = made.finished(100)
    html = write_report(run).read_text()
    last = [line for line in run.metrics() if line["kind"] == "eval"][-1]
    for number in (
        f"{last['nats_per_token']:.4f}",
        f"{last['bits_per_byte']:.3f}",
        "1,283,456",
        "409,600",
        "15 s",
        "435 GFLOP/s",
        "1.82 times the rate of fp32",
    ):
        assert number in html, number


def test_the_command_and_the_spec_repeat_the_run(made: Any, tmp_path: Path) -> None:
    run = made.finished(30, "model.dim=128", "data.text=my notes.txt", name="it's mine")
    html = write_report(run).read_text()
    listings = [unescape(text) for text in re.findall(r"<pre[^>]*>\n?(.*?)</pre>", html, re.S)]
    command = next(text for text in listings if text.startswith("archwright train"))
    assert "it'\"'\"'s mine/spec.toml' --out" in command
    assert load_run(run.spec_file) == run.spec  # what the command reads
    saved = tmp_path / "spec.toml"
    saved.write_text(listings[-1])
    assert load_run(saved) == run.spec
    parts = run.spec.model_copy(update={"parts": (PartsFile(name="my norm.py", sha256="0"),)})
    history = replace(read_history(run), spec=parts)
    assert sections.command(history).endswith("-again' --parts 'my norm.py'")


@pytest.mark.slow
def test_long_runs_stay_small_and_keep_their_peaks(made: Any) -> None:
    lines = [
        {"kind": "train", **made.at(step), "loss": 3.0, "grad_norm": 0.5, "lr": 1e-3}
        for step in range(1, 100_001)
    ]
    lines[77_777]["loss"] = 9.5
    short, long = made.run(lines[:1], name="short"), made.run(lines, name="long")
    growth = write_report(long).stat().st_size - write_report(short).stat().st_size
    assert growth < 1_000_000
    html = long.report_file.read_text()
    found = re.search(r'id="page-data">(.*?)</script>', html, re.S)
    assert found
    loss = json.loads(found[1])["charts"][0]["traces"][0]
    assert max(loss["y"]) == 9.5
    assert loss["along"]["step"][loss["y"].index(9.5)] == 77_778
    assert "metrics.jsonl has all" in html
