"""Examples of a task are a function of seed and number, and those of one side are never of the other."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest

from archwright.data.inputs import IGNORE
from archwright.data.task_text import SIDES, TaskBatches, TaskText, TaskWindows
from archwright.data.tasks import TASKS, Example, Sampler
from archwright.spec.errors import UserError
from archwright.spec.tasks import MQAR, KHop, Markov, Needle, SelectiveCopy, Task

LENGTH = 32
ALL = [
    MQAR(pairs=4, fewest_pairs=2, keys=9, values=9),
    Markov(),
    Needle(),
    SelectiveCopy(copied=4),
    KHop(),
]


def text(
    task: Task, side: Literal["train", "held_out"] = "train", length: int = LENGTH
) -> TaskText:
    return TaskText(task, side, len(task.words), length)


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.kind)
class TestEveryTask:
    def test_a_batch_is_a_function_of_seed_and_step(self, task: Task) -> None:
        first, again, other = (TaskBatches(text(task), 4, seed) for seed in (0, 0, 1))
        assert (first.at(3).inputs.tokens == again.at(3).inputs.tokens).all()
        assert (first.at(3).targets == again.at(3).targets).all()
        for batch in (other.at(3), first.at(4)):
            assert (first.at(3).inputs.tokens != batch.inputs.tokens).any()

    def test_a_row_is_the_token_that_begins_a_text_and_an_example(self, task: Task) -> None:
        batch = TaskBatches(text(task), 8).at(0)
        assert batch.inputs.tokens.shape == batch.targets.shape == (8, LENGTH)
        assert (batch.inputs.tokens[:, 0] == len(task.words)).all()
        assert batch.inputs.tokens[:, 1:].max() < len(task.words)
        assert (batch.targets[:, 0] == IGNORE).all()
        scored = batch.targets != IGNORE
        assert scored.any(axis=1).all()
        assert 0 <= batch.targets[scored].min() <= batch.targets[scored].max() < len(task.words)

    def test_a_context_that_is_too_short_is_refused(self, task: Task) -> None:
        TaskBatches(text(task, length=task.shortest), 1).at(0)
        with pytest.raises(UserError, match=f"expects at least {task.shortest}"):
            TaskBatches(text(task, length=task.shortest - 1), 1)


class TestWindows:
    def test_held_out_examples_are_the_same_for_all_and_as_many_as_asked(self) -> None:
        held_out = text(ALL[0], "held_out")
        few, many = (TaskWindows(held_out, LENGTH, 3, LENGTH * number) for number in (4, 7))
        assert (few.num_tokens, many.num_tokens) == (4 * LENGTH, 7 * LENGTH)
        rows = [np.concatenate([b.inputs.tokens for b in windows]) for windows in (few, many)]
        assert (rows[0] == rows[1][:4]).all()
        assert [len(batch.targets) for batch in many] == [3, 3, 1]
        assert len(many) == 3

    def test_they_have_all_pairs_where_examples_of_training_have_fewer(self) -> None:
        windows = TaskWindows(text(ALL[0], "held_out"), LENGTH, 8, 16 * LENGTH)
        assert all(((batch.targets != IGNORE).sum(axis=1) == 4).all() for batch in windows)
        trained = TaskBatches(text(ALL[0]), 32).at(0)
        assert set((trained.targets != IGNORE).sum(axis=1)) == {2, 3, 4}

    def test_they_can_be_longer_than_those_of_training(self) -> None:
        windows = TaskWindows(text(ALL[0], "held_out"), 4 * LENGTH, 2, 8 * LENGTH)
        assert [batch.targets.shape for batch in windows] == [(2, 4 * LENGTH)]


def test_no_example_is_of_both_sides() -> None:
    """Of a task with 256 examples, each of which would come up on both sides by chance."""
    drawn = [text(KHop(k=1, symbols=2), side, 9).batch(0, range(600)) for side in SIDES]
    train, held_out = ({tuple(row) for row in batch.inputs.tokens} for batch in drawn)
    assert not train & held_out
    assert len(train) + len(held_out) > 230
    assert 0.05 < len(held_out) / len(train) < 0.3


def test_fingerprints_differ_with_options_and_sides() -> None:
    texts = [text(task, side) for task in (MQAR(), MQAR(pairs=3), KHop()) for side in SIDES]
    assert len({each.fingerprint for each in texts}) == 6
    assert text(MQAR()).fingerprint == text(MQAR()).fingerprint


def test_a_task_with_one_example_is_refused(visitors: Callable[..., Any]) -> None:
    class Constant(Task):
        kind: Literal["constant"] = "constant"

    class ConstantSampler(Sampler):
        chance = 1.0

        def __init__(self, spec: Constant, length: int) -> None:
            self.length = length

        def sample(self, generator: np.random.Generator) -> Example:
            return Example(np.zeros(self.length, np.int64), np.zeros(self.length, np.int64))

    TASKS.add(Constant, ConstantSampler)
    text(Constant(), "train").batch(0, [0])
    held_out = text(Constant(), "held_out")
    with pytest.raises(UserError, match="too few different examples"):
        held_out.batch(0, [0])
