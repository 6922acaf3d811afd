"""Induction over k hops."""

import numpy as np

from archwright.data.inputs import IGNORE
from archwright.data.tasks.base import Example, Sampler
from archwright.spec.tasks import KHop


class KHopSampler(Sampler):
    """With find(i) the largest j <= i for which x_(j-1) = x_i, the answer at i is x at find(... find(i)), k times;
    none where a hop finds nothing."""

    def __init__(self, spec: KHop, length: int) -> None:
        self.spec, self.length = spec, length
        self.chance = 1 / spec.symbols

    def sample(self, generator: np.random.Generator) -> Example:
        """Draw an example."""
        tokens = generator.integers(self.spec.symbols, size=self.length)
        last = np.full(self.spec.symbols, -1)
        # One more place, whose hop leads to itself, for hops that find nothing.
        found = np.full(self.length + 1, self.length)
        for i, token in enumerate(tokens.tolist()):
            if last[token] >= 0:
                found[i] = last[token] + 1
            last[token] = i
        place = found
        for _ in range(self.spec.k - 1):
            place = found[place]
        answers = np.append(tokens, IGNORE)[place[:-1]]
        return Example(tokens, answers)
