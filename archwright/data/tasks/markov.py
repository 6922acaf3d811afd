"""Markov chains of known entropy."""

import numpy as np
from numpy.typing import NDArray

from archwright.data.inputs import IGNORE
from archwright.data.tasks.base import Example, Sampler
from archwright.spec.errors import UserError
from archwright.spec.tasks import Markov

Floats = NDArray[np.float64]

STILL = 1e-14
"""Change of the stationary distribution in a step, summed over its states, at which it has settled."""
STEPS = 10_000
"""Of a chain, after which one that has not settled hardly ever leaves some of its states."""
MOST_SOLVED = 4096
"""States of such a chain whose equations are solved."""


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
        self.stationary = _stationary(self.table, spec)
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


def _stationary(table: Floats, spec: Markov) -> Floats:
    """Return the distribution over states [states] that a step of the chain leaves as it is, by taking steps, or where
    these lead nowhere, by its equations; states are the last tokens, the oldest first.

    Raises:
        UserError: the chain hardly ever leaves some of too many states.
    """
    states = len(table)
    found = np.full(states, 1 / states)
    for _ in range(STEPS):
        after = _step(found, table)
        moved = float(np.abs(after - found).sum())
        # Half a step at a time: no cycle goes on for ever.
        found = (found + after) / 2
        if moved < STILL:
            break
    else:
        if states > MOST_SOLVED:
            raise UserError(
                f"data.task.concentration: found {spec.concentration:g}; with order = {spec.order} and symbols = "
                f"{spec.symbols} such a chain hardly ever leaves some of its {states:,} states, so that its entropy is "
                "not known: raise it, to 0.3 for instance, or lower order or symbols"
            )
        found = _solved(table)
    whole: Floats = found / found.sum()
    return whole


def _step(shares: Floats, table: Floats) -> Floats:
    """Return the distribution over states [states] after one more token."""
    joint = shares[:, None] * table  # [states, symbols]
    after: Floats = joint.reshape(table.shape[1], -1).sum(axis=0)  # the oldest token is forgotten
    return after


def _solved(table: Floats) -> Floats:
    """Return pi with pi P = pi and sum pi = 1, P the transitions from state to state."""
    states, symbols = table.shape
    here = np.arange(states)
    equations = -np.eye(states)
    for token in range(symbols):
        np.add.at(equations, ((here * symbols + token) % states, here), table[:, token])
    equations[-1] = 1.0  # in place of one that follows from the others
    found: Floats = np.linalg.solve(equations, np.append(np.zeros(states - 1), 1.0))
    return np.maximum(found, 0.0)
