"""Studies on synthetic tasks: the accuracy of each variant stands beside its loss."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from archwright.lab.compare import compare
from archwright.lab.procedure.verdict import effects
from archwright.lab.report.csv_files import tables
from archwright.lab.report.page import study_page
from archwright.lab.report.sections import answers_section
from archwright.lab.report.terminal import print_results
from archwright.lab.results import Effect, StudyResults, TaskFacts, Unit
from tests.lab.made_results import judged, two_variants
from tests.lab.small import COMMON, OPTIONS, working_in


@pytest.fixture(scope="module")
def made() -> StudyResults:
    results = two_variants()
    shares = {"modern": 0.99, results.variants[1].name: 0.31}
    replicates = [
        replace(r, best=replace(r.best, accuracy=shares[r.variant] + r.seed / 1000))
        for r in results.replicates
    ]
    return replace(results, task=TaskFacts("mqar", 1 / 64, 0.0), replicates=replicates)


def test_accuracies_are_those_of_the_best_runs(
    made: StudyResults, capsys: pytest.CaptureFixture[str]
) -> None:
    section = answers_section(made)
    assert section
    (table,) = section.blocks
    assert [row.cells for row in table.rows] == [
        ("modern", "99.2 %", "99.0 %", "99.4 %", "5"),
        (made.variants[1].name, "31.2 %", "31.0 %", "31.4 %", "5"),
    ]
    assert "1.6 % are right by guessing" in study_page(made).html()
    print_results(made)
    assert (
        f"Answers of mqar that are right: modern 99.2 % and {made.variants[1].name} 31.2 %; 1.6 % by guessing."
        in capsys.readouterr().out
    )


def test_a_study_on_documents_says_nothing_of_answers() -> None:
    results = two_variants()
    assert answers_section(results) is None
    assert "accuracy" not in tables(results)["runs.csv"]


def test_to_solve_a_task_that_another_does_not_is_a_result(made: StudyResults) -> None:
    """Losses are about 1.98 nats in both; one of them is moved beyond those of guessing."""
    name = made.variants[1].name

    def outcome(worse: float, guessing: float, unit: Unit = "nats per answer") -> Effect:
        moved = [
            replace(r, loss=r.loss + worse * (r.variant == name), at_boundary=False)
            for r in made.replicates
        ]
        learnt = {"modern": guessing, name: guessing}
        (found,) = effects(
            moved,
            made.study,
            "modern",
            learnt=learnt,
            unit=unit,
            **judged(moved, made.study, "modern"),
        )
        return found

    assert outcome(2.0, guessing=3.0).outcome == "worse"
    assert " nats per answer higher" in outcome(2.0, guessing=3.0).sentence
    assert outcome(2.0, guessing=3.0, unit="nats per token").outcome == "inconclusive"
    assert "% of the loss" in outcome(2.0, guessing=3.0).sentence
    assert "% of the loss" not in outcome(30.0, guessing=3.0).sentence
    neither = outcome(2.0, guessing=1.0)
    assert neither.outcome == "inconclusive"
    assert (
        f"neither {name} nor modern has more answers right than guessing (1.00 nats per answer)"
        in neither.sentence
    )
    assert "nats per token" not in neither.sentence


@pytest.mark.slow
def test_a_study_on_a_task(tmp_path: Path) -> None:
    common = [word for word in COMMON if "tokenizer" not in word]
    with working_in(tmp_path):
        found = compare(
            "modern", ":norm.kind=layer", "data.text=mqar", *common, quiet=True, **OPTIONS
        )
    assert found.task == TaskFacts("mqar", 1 / 128, 0.0)
    assert all(0 <= share < 0.1 for shares in found.accuracies.values() for share in shares)
    # In so few steps nobody learns more than how often each answer occurs.
    assert found.effects[0].outcome == "inconclusive"
    rows = list(csv.DictReader(tables(found)["runs.csv"].splitlines()))
    assert {float(row["accuracy"]) for row in rows} == {
        run.accuracy for run in (*found.runs, *found.shorter_runs)
    }
