from collections.abc import Callable

import numpy as np
import pytest

from archwright.data.tasks import TASKS, Example
from archwright.spec.tasks import Task

Draw = Callable[[Task, int], list[Example]]


@pytest.fixture
def draw() -> Draw:
    """Draws twenty examples of a task, of so many tokens, to be judged on."""

    def drawn(task: Task, length: int) -> list[Example]:
        sampler = TASKS.make(task, length)
        return [sampler.sample(np.random.default_rng(seed)) for seed in range(20)]

    return drawn
