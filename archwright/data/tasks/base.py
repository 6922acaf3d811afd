"""The contract of a synthetic task."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


class Example(NamedTuple):
    """Tokens, and the answer at each of them: what a model is to predict when it has read so far, or IGNORE where
    nothing is asked. Shapes: [length]."""

    tokens: Ids
    answers: Ids


class Sampler(ABC):
    """Draws examples of a task, each of as many tokens as it is made for. A subclass is called with the task's spec, in
    which a number stands for each "auto", and that length."""

    floor: float = 0.0
    """Mean of -ln p of the answers, in nats, below which no model can come."""
    chance: float
    """Share of answers that are right without a look at the example."""

    @abstractmethod
    def sample(self, generator: np.random.Generator) -> Example:
        """Draw an example: a function of the generator alone."""

    def sample_to_train(self, generator: np.random.Generator) -> Example:
        """Draw an example to train on, where these are others than those that a model is judged on."""
        return self.sample(generator)
