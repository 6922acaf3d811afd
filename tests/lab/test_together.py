"""A study whose runs are trained in stacks: its numbers are those of runs alone within rounding."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from archwright.lab.compare import compare, plan
from archwright.lab.results import StudyResults
from archwright.lab.run_cache import stack_of
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from tests.lab.small import OPTIONS, killed_twice_and_finished, losses, words, working_in

pytestmark = pytest.mark.slow

VARIANT = ":norm.kind=layer"
STACKED = OPTIONS | {"parallelism": "ensemble", "seeds": 4}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, with a text, and two cores at most: with more of them than runs nothing is stacked."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if cores:
        os.sched_setaffinity(0, cores[:2])
    with working_in(tmp_path_factory.mktemp("stacks")) as folder:
        yield folder
    if cores:
        os.sched_setaffinity(0, cores)


@pytest.fixture(scope="module")
def stacked(place: Path) -> StudyResults:
    return compare(*words("text.txt", VARIANT), quiet=True, out="study", **STACKED)


@pytest.mark.release
def test_runs_in_stacks_are_what_they_are_alone(stacked: StudyResults, place: Path) -> None:
    alone = compare(
        *words("text.txt", VARIANT),
        quiet=True,
        out="alone",
        runs="alone-runs",
        **OPTIONS | {"seeds": 4},
    )
    assert losses(stacked).keys() == losses(alone).keys()
    assert losses(stacked) == pytest.approx(losses(alone), rel=2e-5)
    assert stacked.replicates
    assert stacked.grids == alone.grids


def test_each_run_says_with_whom_it_was_trained(stacked: StudyResults, place: Path) -> None:
    found = [RunFolder(place / "studies" / "runs" / r.key).environment() for r in stacked.runs]
    ways = {told["decisions"]["together"]["value"] for told in found}
    assert ways & {"stacked with 1 other", "stacked with 2 others"}
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
    members = next(names for names in map(stack_of, folders) if len(names) > 1)
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
    assert [t["decisions"]["together"]["value"] for t in told] == ["alone"] * len(members)
    before = losses(stacked)
    again = [r for r in found.runs if r.key in members and not r.failed]
    assert len(again) == len(members) - 1
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
    kept, found = killed_twice_and_finished(place, VARIANT, "ensemble", seeds=STACKED["seeds"])
    assert kept
    assert found == losses(stacked)
