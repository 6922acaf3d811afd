"""Markov chains against the eigenvector of their transitions, and against counting."""

import itertools

import numpy as np
import pytest

from archwright.data.inputs import IGNORE
from archwright.data.tasks.markov import MarkovSampler
from archwright.spec.errors import UserError
from archwright.spec.tasks import Markov


def eigenvector(sampler: MarkovSampler) -> np.ndarray:
    """The stationary distribution from the whole matrix of states, each a tuple of tokens."""
    symbols, order = sampler.spec.symbols, sampler.spec.order
    states = list(itertools.product(range(symbols), repeat=order))
    matrix = np.zeros((len(states), len(states)))
    for i, state in enumerate(states):
        for symbol in range(symbols):
            matrix[i, states.index((*state[1:], symbol))] += sampler.table[i, symbol]
    values, vectors = np.linalg.eig(matrix.T)
    found = np.real(vectors[:, np.argmax(np.real(values))])
    return found / found.sum()


@pytest.mark.parametrize(("order", "symbols"), [(1, 2), (1, 9), (2, 4), (3, 3)])
def test_the_floor_is_the_entropy_rate(order: int, symbols: int) -> None:
    sampler = MarkovSampler(Markov(order=order, symbols=symbols), 50)
    stationary = eigenvector(sampler)
    assert sampler.stationary == pytest.approx(stationary, abs=1e-9)
    rows = -(sampler.table * np.log(sampler.table)).sum(axis=1)
    assert sampler.floor == pytest.approx(float(stationary @ rows), abs=1e-9)


STICKY = Markov(order=2, symbols=5, concentration=0.01, table_seed=9)
"""It leaves some of its states once in a million tokens."""


def test_the_floor_is_exact_where_a_chain_hardly_ever_leaves_some_states() -> None:
    sampler = MarkovSampler(STICKY, 50)
    stationary = eigenvector(sampler)
    assert sampler.stationary == pytest.approx(stationary, abs=1e-6)
    rows = -(sampler.table * np.log(sampler.table)).sum(axis=1)
    assert sampler.floor == pytest.approx(float(stationary @ rows), rel=1e-6)


def test_too_many_such_states_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archwright.data.tasks.markov.MOST_SOLVED", 24)
    with pytest.raises(UserError, match=r"data\.task\.concentration: found 0\.01; .* raise it"):
        MarkovSampler(STICKY, 50)


def test_drawn_tokens_have_that_entropy_and_that_table() -> None:
    sampler = MarkovSampler(Markov(order=2, symbols=3, table_seed=5), 4000)
    counts, nats, number = np.zeros((9, 3)), 0.0, 0
    for seed in range(10):
        tokens, answers = sampler.sample(np.random.default_rng(seed))
        assert (answers[:-1][answers[:-1] != IGNORE] == tokens[2:]).all()
        assert answers[0] == IGNORE
        states = 3 * tokens[:-1] + tokens[1:]
        np.add.at(counts, (states, answers[1:]), 1)
        nats -= np.log(sampler.table[states, answers[1:]]).sum()
        number += len(states)
    assert nats / number == pytest.approx(sampler.floor, abs=0.02)
    seen = counts.sum(axis=1) > 2000
    assert counts[seen] / counts[seen].sum(axis=1, keepdims=True) == pytest.approx(
        sampler.table[seen], abs=0.04
    )


def test_the_first_tokens_are_stationary_too() -> None:
    sampler = MarkovSampler(Markov(order=2, symbols=2), 3)
    starts = [sampler.sample(np.random.default_rng(seed)).tokens[:2] for seed in range(4000)]
    found = np.bincount([2 * a + b for a, b in starts], minlength=4) / 4000
    assert found == pytest.approx(sampler.stationary, abs=0.03)


def test_the_table_is_of_its_own_seed() -> None:
    first, same, other = (MarkovSampler(Markov(table_seed=s), 9) for s in (0, 0, 1))
    assert (first.table == same.table).all()
    assert first.floor != other.floor
