"""Laws that hold for every objective and every task: batches are a function of (seed, step) alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from archwright.data import batches as batching
from archwright.data.inputs import Batch, Inputs
from archwright.data.objectives import OBJECTIVES, MakeBatch
from archwright.data.tasks import TASKS
from archwright.spec.objectives import MaskedTokens, Objective
from archwright.spec.tasks import Task
from archwright.testing import LAWS_OF_OBJECTIVES, LAWS_OF_TASKS
from archwright.testing.data_laws import (
    a_function_of_seed_and_step,
    documents_stay_apart,
    padding_is_no_text,
    rows_of_targets,
    source,
)
from archwright.testing.law import Broken


def targets_are_of_the_text_in_its_order(objective: Objective) -> None:
    """Targets are tokens of the text of their row, in its order, as of all objectives that move none."""
    for row, targets, text in rows_of_targets(objective):
        left = iter(text)
        if not all(target in left for target in targets):
            raise Broken(f"targets of row {row} are in another order than its text")


def packed_is_the_same_text(objective: Objective) -> None:
    """Where documents do not see each other, the same is read and predicted, as of all objectives that move nothing."""
    if objective.has_source:
        return
    whole, packed = (source(objective, packing=p)[0].at(1) for p in ("concat", "document_mask"))
    then = "draw as much and in the same order, with segment_ids and without"
    if not np.array_equal(packed.inputs.tokens, whole.inputs.tokens):
        raise Broken(f"other tokens are read; {then}")
    # With a prefix, each document begins with one of its own.
    if not objective.has_prefix and not np.array_equal(packed.targets, whole.targets):
        raise Broken(f"other tokens are predicted; {then}")


LAWS = (
    *LAWS_OF_OBJECTIVES,
    targets_are_of_the_text_in_its_order,
    packed_is_the_same_text,
)
"""Those of all objectives, and two of those that leave a text in its order."""
ALL = [cls() for cls in OBJECTIVES]
"""Every objective with its defaults."""
ALL_TASKS = [cls() for cls in TASKS]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("objective", ALL, ids=lambda objective: objective.kind)
def test_every_objective_is_lawful(objective: Objective, law: Callable[[Objective], None]) -> None:
    law(objective)


@pytest.mark.parametrize("law", LAWS_OF_TASKS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("task", ALL_TASKS, ids=lambda task: task.kind)
def test_every_task_is_lawful(task: Task, law: Callable[[Task], None]) -> None:
    law(task)


Change = Callable[[MakeBatch], MakeBatch]


def _changed(patch: pytest.MonkeyPatch, change: Change) -> None:
    part = OBJECTIVES[MaskedTokens]
    patch.setitem(OBJECTIVES, MaskedTokens, lambda spec, words: change(part(spec, words)))


def draws_that_go_on_from_batch_to_batch(patch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    _changed(patch, lambda make: lambda text, _: make(text, generator))


def targets_of_another_row(patch: pytest.MonkeyPatch) -> None:
    def change(make: MakeBatch) -> MakeBatch:
        def other(text: Inputs, generator: np.random.Generator) -> Batch:
            batch = make(text, generator)
            return replace(batch, targets=np.roll(batch.targets, 1, axis=0))

        return other

    _changed(patch, change)


def padding_that_is_chosen(patch: pytest.MonkeyPatch) -> None:
    _changed(patch, lambda make: lambda text, dice: make(replace(text, padding_mask=None), dice))


def documents_that_change_the_draws(patch: pytest.MonkeyPatch) -> None:
    def change(make: MakeBatch) -> MakeBatch:
        def other(text: Inputs, generator: np.random.Generator) -> Batch:
            if text.segment_ids is not None:
                generator.random()
            return make(text, generator)

        return other

    _changed(patch, change)


def documents_that_begin_too_late(patch: pytest.MonkeyPatch) -> None:
    documents = batching._documents

    def late(tokens: Any, end_of_text: int) -> Any:
        positions, ids = documents(tokens, end_of_text)
        return positions, np.roll(ids, 1, axis=1)

    patch.setattr(batching, "_documents", late)


FAULTS = (
    (draws_that_go_on_from_batch_to_batch, a_function_of_seed_and_step),
    (targets_of_another_row, targets_are_of_the_text_in_its_order),
    (padding_that_is_chosen, padding_is_no_text),
    (documents_that_change_the_draws, packed_is_the_same_text),
    (documents_that_begin_too_late, documents_stay_apart),
)


@pytest.mark.parametrize(("plant", "law"), FAULTS, ids=lambda value: value.__name__)
def test_a_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None],
    law: Callable[[Objective], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    law(MaskedTokens())
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        law(MaskedTokens())
