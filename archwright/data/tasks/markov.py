"""Markov chains of known entropy."""

import numpy as np
from numpy.typing import NDArray

from archwright.data.inputs import IGNORE
from archwright.data.tasks.base import Example, Sampler
from archwright.spec.errors import UserError
from archwright.spec.tasks import Markov

Floats = NDArray[np.float64]

STILL = 1e-14
"""Tolerance of convergence: L1 change of the state distribution in one step."""
STEPS = 10_000
"""Maximum number of steps. A chain that has not converged by then almost never leaves some of its states."""
MOST_SOLVED = 4096
"""Maximum number of states for which the linear equations are solved if steps do not converge."""


class MarkovSampler(Sampler):
    """A Markov chain with a random table of p(x_t | x_(t-order) ... x_(t-1)).

    The first `order` tokens are drawn from the stationary distribution pi, so that all positions have the same
    distribution. All later tokens are answers. floor = - sum over states s of pi(s) sum over x of p(x | s) ln p(x | s).
    """

    def __init__(self, spec: Markov, length: int) -> None:
        self.spec, self.length = spec, length
        states, rows = spec.symbols**spec.order, np.random.default_rng(spec.table_seed)
        # [states, symbols]; all transitions have positive probability, so the stationary distribution is unique.
        drawn = rows.dirichlet(np.full(spec.symbols, spec.concentration), states) + 1e-6
        self.table = drawn / drawn.sum(axis=1, keepdims=True)
        self.stationary = _stationary(self.table, spec)
        self.floor = float(-(self.stationary[:, None] * self.table * np.log(self.table)).sum())
        single = self.stationary.reshape(spec.symbols, -1).sum(axis=1)
        self.chance = float(single.max())
        self._steps = np.cumsum(self.table, axis=1)
        self._starts = np.cumsum(self.stationary)

    def sample(self, generator: np.random.Generator) -> Example:
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
    """Return the stationary distribution [states], by iteration, or else by linear equations.

    A state is the last `order` tokens, oldest first.

    Raises:
        UserError: the iteration does not converge, and there are too many states for the equations.
    """
    states = len(table)
    pi = np.full(states, 1 / states)
    for _ in range(STEPS):
        after = _step(pi, table)
        change = float(np.abs(after - pi).sum())
        # Half steps damp cycles.
        pi = (pi + after) / 2
        if change < STILL:
            break
    else:
        if states > MOST_SOLVED:
            raise UserError(
                f"data.task.concentration: found {spec.concentration:g}; with order = {spec.order} and symbols = "
                f"{spec.symbols}, this chain almost never leaves some of its {states:,} states, so its entropy cannot "
                "be computed: raise it, for instance to 0.3, or lower order or symbols"
            )
        pi = _solved(table)
    normalized: Floats = pi / pi.sum()
    return normalized


def _step(shares: Floats, table: Floats) -> Floats:
    """Return the distribution over states [states] after one more token."""
    joint = shares[:, None] * table  # [states, symbols]
    after: Floats = joint.reshape(table.shape[1], -1).sum(axis=0)  # sum over the oldest token
    return after


def _solved(table: Floats) -> Floats:
    """Solve pi P = pi with sum pi = 1, where P is the matrix of transition probabilities."""
    states, symbols = table.shape
    here = np.arange(states)
    equations = -np.eye(states)
    for token in range(symbols):
        np.add.at(equations, ((here * symbols + token) % states, here), table[:, token])
    equations[-1] = 1.0  # replaces a redundant equation
    pi: Floats = np.linalg.solve(equations, np.append(np.zeros(states - 1), 1.0))
    return np.maximum(pi, 0.0)
