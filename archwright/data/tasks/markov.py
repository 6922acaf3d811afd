"""Markov chains of known entropy."""

import numpy as np
from numpy.typing import NDArray

from archwright.data.inputs import IGNORE
from archwright.data.tasks.base import Example, Sampler
from archwright.spec.tasks import Markov

Floats = NDArray[np.float64]

STILL = 1e-14
"""Change of the stationary distribution, summed over its states, at which it has settled."""


class MarkovSampler(Sampler):
    """x_t is drawn from p(x_t | x_(t-order) ... x_(t-1)), a table; the first `order` tokens from the chain's stationary
    distribution pi, so that all places are alike. Every token that follows as many is an answer, and
    floor = - sum over states s of pi(s) sum over x of p(x | s) ln p(x | s).
    """

    def __init__(self, spec: Markov, length: int) -> None:
        self.spec, self.length = spec, length
        states, rows = spec.symbols**spec.order, np.random.default_rng(spec.table_seed)
        # [states, symbols]; every transition is possible, so that the chain has one stationary distribution.
        drawn = rows.dirichlet(np.full(spec.symbols, spec.concentration), states) + 1e-6
        self.table = drawn / drawn.sum(axis=1, keepdims=True)
        self.stationary = _stationary(self.table)
        self.floor = float(-(self.stationary[:, None] * self.table * np.log(self.table)).sum())
        single = self.stationary.reshape(spec.symbols, -1).sum(axis=1)
        self.chance = float(single.max())
        self._steps = np.cumsum(self.table, axis=1)
        self._starts = np.cumsum(self.stationary)

    def sample(self, generator: np.random.Generator) -> Example:
        """Draw an example."""
        order, symbols = self.spec.order, self.spec.symbols
        state = min(int(np.searchsorted(self._starts, generator.random())), len(self.table) - 1)
        tokens = np.empty(self.length + 1, np.int64)
        tokens[:order] = [state // symbols**i % symbols for i in reversed(range(order))]
        draws, keep = generator.random(self.length + 1), symbols ** (order - 1)
        for t in range(order, self.length + 1):
            drawn = min(int(self._steps[state].searchsorted(draws[t])), symbols - 1)
            tokens[t] = drawn
            state = state % keep * symbols + drawn
        answers = tokens[1:].copy()
        answers[: order - 1] = IGNORE
        return Example(tokens[:-1], answers)


def _stationary(table: Floats) -> Floats:
    """Return the distribution over states [states] that a step of the chain leaves as it is, by taking steps; states
    are the last tokens, the oldest first."""
    states, symbols = table.shape
    found = np.full(states, 1 / states)
    for _ in range(1_000_000):
        joint = found[:, None] * table  # [states, symbols]
        # The oldest token is forgotten.
        after: Floats = joint.reshape(symbols, states).sum(axis=0)
        moved = float(np.abs(after - found).sum())
        # Half a step at a time: no cycle goes on for ever.
        found = (found + after) / 2
        if moved < STILL * states:
            break
    whole: Floats = found / found.sum()
    return whole
