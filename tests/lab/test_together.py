"""A study whose runs are trained in stacks: its numbers are those of runs alone within rounding."""

import csv
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from archwright.lab.compare import compare, plan
from archwright.lab.results import StudyResults
from archwright.lab.run_cache import stack_of
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from tests.lab.small import OPTIONS, words, working_in
from tests.tiny import command, surroundings

pytestmark = pytest.mark.slow

VARIANT = ":norm.kind=layer"
STACKED = OPTIONS | {"parallelism": "ensemble"}
Losses = dict[tuple[str, int, float], float]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, with a text."""
    with working_in(tmp_path_factory.mktemp("stacks")) as folder:
        yield folder


@pytest.fixture(scope="module")
def stacked(place: Path) -> StudyResults:
    return compare(*words("text.txt", VARIANT), quiet=True, out="study", **STACKED)


def losses(found: StudyResults) -> Losses:
    return {(r.variant, r.seed, r.lr): r.loss for r in found.runs}


def test_runs_in_stacks_are_what_they_are_alone(stacked: StudyResults, place: Path) -> None:
    alone = compare(
        *words("text.txt", VARIANT), quiet=True, out="alone", runs="alone-runs", **OPTIONS
    )
    assert losses(stacked).keys() == losses(alone).keys()
    assert losses(stacked) == pytest.approx(losses(alone), rel=1e-5)
    assert stacked.replicates
    assert stacked.grids == alone.grids


def test_each_run_says_with_whom_it_was_trained(stacked: StudyResults, place: Path) -> None:
    found = [RunFolder(place / "studies" / "runs" / r.key).environment() for r in stacked.runs]
    ways = {told["decisions"]["together"]["value"] for told in found}
    assert "stacked with 2 others" in ways
    for run, told in zip(stacked.runs, found, strict=True):
        assert not told["stack"] or run.key in told["stack"]
        assert told["decisions"]["together"]["reason"] == "stacks were asked for"
    sweep = [r for r in stacked.runs if (r.variant, r.seed) == ("modern", 1)]
    assert {r.key for r in sweep} >= set(
        next(t["stack"] for r, t in zip(stacked.runs, found, strict=True) if r in sweep)
    )
    assert any("rounding" in held.value for held in stacked.held)


def test_a_stack_that_fails_lets_each_of_its_runs_go_on_alone(
    stacked: StudyResults, place: Path
) -> None:
    shutil.copytree(place / "study", place / "failing")
    shutil.copytree(place / "studies" / "runs", place / "failing-runs")
    folders = [RunFolder(place / "failing-runs" / r.key) for r in stacked.runs]
    members = next(names for names in map(stack_of, folders) if len(names) == 3)
    broken = RunFolder(place / "failing-runs" / members[0])
    for key in members:
        RunFolder(place / "failing-runs" / key).metrics_file.unlink()
    text = broken.environment_file.read_text().replace('"held_out"', '"missing"')
    broken.environment_file.write_text(text)
    with pytest.warns(UserWarning, match=r"environment\.json: left out as damaged: data\."):
        found = compare(
            *words("text.txt", VARIANT), quiet=True, out="failing", runs="failing-runs", **STACKED
        )
    assert [r.key for r in found.runs if r.failed] == [broken.path.name]
    told = [RunFolder(place / "failing-runs" / key).environment() for key in members]
    assert [t["decisions"]["together"]["value"] for t in told] == ["alone"] * 3
    before = losses(stacked)
    again = [r for r in found.runs if r.key in members and not r.failed]
    assert len(again) == 2
    for run in again:
        expected = before[run.variant, run.seed, run.lr]
        assert run.loss == pytest.approx(expected, rel=1e-5)


def test_stacks_that_cannot_be_are_refused_with_the_reason(place: Path) -> None:
    with pytest.raises(UserError, match=r"attention.sinks=true: .* expected processes or auto"):
        plan(*words("text.txt", ":attention.sinks=true"), **STACKED)


@pytest.mark.release
@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_killed_at_any_moment_a_study_of_stacks_ends_with_the_same_numbers(
    stacked: StudyResults, place: Path
) -> None:
    again = command(
        "compare",
        *words("text.txt", VARIANT),
        *("--budget", "20steps", "--seeds", "2", "--evaluation-tokens", "2048"),
        *("--parallelism", "ensemble", "--quiet", "--out", "killed", "--runs", "killed-runs"),
    )
    runs = place / "killed-runs"
    kept: set[str] = set()
    for goal in (1, 5):
        process = subprocess.Popen(again, cwd=place, env=surroundings())
        while len(finished(runs)) < goal and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(0.3)
        kept |= finished(runs)
    written = {key: (runs / key / "metrics.jsonl").stat().st_mtime_ns for key in kept}
    assert kept
    done = subprocess.run(again, cwd=place, env=surroundings(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {key: (runs / key / "metrics.jsonl").stat().st_mtime_ns for key in kept} == written
    with (place / "killed" / "runs.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = {(r["variant"], int(r["seed"]), float(r["lr"])): float(r["loss"]) for r in rows}
    assert found == losses(stacked)


def finished(runs: Path) -> set[str]:
    return {f.parent.name for f in runs.glob("*/metrics.jsonl") if RunFolder(f.parent).finished}
