"""Induction over k hops."""

import numpy as np

from archwright.data.inputs import IGNORE
from archwright.data.tasks.base import Example, Sampler
from archwright.spec.tasks import KHop


class KHopSampler(Sampler):
    """The answer at i is the token after k hops from i.

    hop(i) is the largest j <= i with x_(j-1) = x_i. If a hop has no such j, i has no answer.
    """

    def __init__(self, spec: KHop, length: int) -> None:
        self.spec, self.length = spec, length
        self.chance = 1 / spec.symbols

    def sample(self, generator: np.random.Generator) -> Example:
        tokens = generator.integers(self.spec.symbols, size=self.length)
        last = np.full(self.spec.symbols, -1)
        # Failed hops lead to an extra position at the end, and this position leads to itself.
        hop = np.full(self.length + 1, self.length)
        for i, token in enumerate(tokens.tolist()):
            if last[token] >= 0:
                hop[i] = last[token] + 1
            last[token] = i
        position = hop
        for _ in range(self.spec.k - 1):
            position = hop[position]
        answers = np.append(tokens, IGNORE)[position[:-1]]
        return Example(tokens, answers)
