"""What looks at how torchrun ends sees each way that is wrong."""

from pathlib import Path

import pytest

import archwright
from tests.faults.exits import FAILURES, Ended, failure_problems, success_problems
from tests.tiny import tiny_run, write_text

GOOD = Ended(0, "", [], was_killed=False, seconds=1.0)
LEFT = "RANK=1 of 7"


def test_a_run_that_ended_well_was_trained_by_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(tmp_path / "cache"))
    assert success_problems(tmp_path, GOOD) == ["the run is not finished"]
    text = write_text(tmp_path / "text.txt", 100)
    run = tiny_run(text, "budget=1steps", "evaluate.final_max_tokens=100")
    folder = archwright.train(run, out=tmp_path / "run", quiet=True).folder
    assert success_problems(tmp_path, GOOD) == ["it was not trained by two processes"]
    folder.append({"kind": "event", "step": 1, "name": "resumed", "text": "on 2 processes"})
    folder.append({"kind": "event", "step": 1, "name": "finished"})
    assert success_problems(tmp_path, GOOD) == []
    wrong = success_problems(tmp_path, GOOD._replace(code=1, orphans=[LEFT]))
    assert [problem.partition(":")[0] for problem in wrong] == ["left", "exit code 1"]
    failure = FAILURES["a text that is not there"]
    assert failure_problems(tmp_path, GOOD._replace(code=1, output=failure.answer), failure) == [
        "the run is finished"
    ]


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_must_have_happened_and_be_said(name: str, tmp_path: Path) -> None:
    failure = FAILURES[name]
    as_it_should = Ended(1, failure.answer, [], failure.kills, 1.0)
    assert failure_problems(tmp_path, as_it_should, failure) == []
    wrongs = [
        (as_it_should._replace(code=0), "exit code 0"),
        (as_it_should._replace(output=""), "it does not say"),
        (as_it_should._replace(orphans=[LEFT]), LEFT),
    ]
    if failure.kills:
        wrongs.append((as_it_should._replace(was_killed=False), "nothing was killed"))
    for found, seen in wrongs:
        [problem] = failure_problems(tmp_path, found, failure)
        assert seen in problem
