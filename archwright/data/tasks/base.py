"""The interface of synthetic tasks."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


class Example(NamedTuple):
    """Tokens [length], and the answer to predict after each token [length], or IGNORE."""

    tokens: Ids
    answers: Ids


class Sampler(ABC):
    """Draws examples of a task.

    A subclass is called with the task's spec, with numbers instead of "auto", and the number of tokens per example.
    """

    floor: float = 0.0
    """Lower bound of the mean -ln p of the answers, in nats, for any model."""
    chance: float
    """Best accuracy of a constant answer."""

    @abstractmethod
    def sample(self, generator: np.random.Generator) -> Example:
        """Draw an example, which depends only on the generator."""

    def sample_to_train(self, generator: np.random.Generator) -> Example:
        """Draw a training example; override if training differs from evaluation."""
        return self.sample(generator)
