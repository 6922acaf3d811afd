"""How runs share a CPU follows from what was asked for, from what can be stacked, and from times."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from archwright.lab.concurrency import Sharing
from archwright.lab.matching import Counts
from archwright.lab.plan import Arm
from archwright.lab.plan_file import Cost
from archwright.spec.errors import UserError
from archwright.spec.study_spec import StudySpec
from tests.tiny import tiny_run

COUNTS = Counts(1000, 500, 3000.0)
TOKENS: Any = SimpleNamespace(tokenizer=SimpleNamespace(vocab_size=320))


def arms(*changes: str) -> dict[str, Arm]:
    runs = {"modern": tiny_run("text.txt"), "b": tiny_run("text.txt", *changes)}
    return {name: Arm(name, (), run, COUNTS, True, TOKENS) for name, run in runs.items()}


def decide(gain: float, *changes: str, **options: object) -> tuple[int, str]:
    """Decide where a run in a stack of K takes 1 / (1 + gain K) of a run alone."""

    def timed(found: Mapping[str, Arm], workers: int, stack: int = 1) -> dict[str, Cost]:
        step = 1.0 if stack == 1 else 1 / (1 + gain * stack)
        return {name: Cost(0.0, step, 0.0) for name in found}

    study = StudySpec(variants={"b": ("dim=8",)}).model_copy(update=options)
    sharing = Sharing(study, timed)
    costs, stack, why = sharing.decide(arms(*changes), 2)
    usual = sharing.usual(2, 2, stack)
    expected = 1.0 if usual == 1 else 1 / (1 + gain * usual)
    assert {cost.step for cost in costs.values()} == {expected}
    return stack, why


def test_the_fastest_way_is_taken_and_says_why() -> None:
    stack, why = decide(0.1, procedure="sweep", seeds=5)
    assert stack == 6  # two whole sweeps of three
    assert why == "6 runs as one train 1.60 times the tokens of as many alone on a thread"
    assert decide(0.001)[0] == 1
    assert decide(0.1, tune_lr=False, seeds=5)[0] == 4  # of five seeds
    assert decide(0.1)[0] == 8  # of nine


def test_what_is_asked_for_is_not_measured() -> None:
    assert decide(0.1, parallelism="processes") == (1, "parallelism=processes was asked for")
    assert decide(-0.1, parallelism="ensemble") == (8, "stacks were asked for")


def test_one_variant_that_cannot_be_stacked_leaves_all_alone() -> None:
    stack, why = decide(0.1, "model.embedding.dropout=0.1")
    assert (stack, why) == (1, "b: dropout would draw other random numbers than alone")
    with pytest.raises(UserError, match="b: dropout"):
        decide(0.1, "model.embedding.dropout=0.1", parallelism="ensemble")


def test_a_stack_leaves_no_core_without_work() -> None:
    study = StudySpec(variants={"b": ("dim=8",)}, tune_lr=False, seeds=4)
    sharing = Sharing(study, lambda found, workers, stack=1: {})
    assert sharing.sizes(2, 2) == [2, 4]
    assert sharing.sizes(2, 4) == [2]
    assert sharing.sizes(2, 8) == []


def test_time_is_estimated_by_the_stacks_that_most_runs_are_in() -> None:
    study = StudySpec(variants={"b": ("dim=8",)})
    sharing = Sharing(study, lambda found, workers, stack=1: {})
    assert sharing.usual(2, 2, 8) == 2  # three rates on two workers
    assert sharing.usual(3, 2, 8) == 3
    assert sharing.usual(3, 2, 2) == 2
    assert sharing.usual(2, 4, 8) == 1
    for other in ({"early_stopping": False}, {"tune_lr": False}, {"procedure": "sweep"}):
        sharing.study = study.model_copy(update=other)
        assert sharing.usual(2, 2, 8) == 8, other
