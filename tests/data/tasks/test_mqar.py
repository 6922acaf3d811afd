"""The answers of multi-query recall, by a dictionary."""

import numpy as np
import pytest

from archwright.data.inputs import IGNORE
from archwright.data.tasks import TASKS
from archwright.spec.tasks import MQAR
from tests.data.tasks.conftest import Draw


@pytest.mark.parametrize(("pairs", "length"), [(64, 255), (4, 63), (3, 12), (1, 3)])
def test_each_key_is_asked_once_and_answered_by_its_value(
    draw: Draw, pairs: int, length: int
) -> None:
    for tokens, answers in draw(MQAR(pairs=pairs, fewest_pairs=1), length):
        assert len(tokens) == len(answers) == length
        known = dict(zip(tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2], strict=True))
        assert len(known) == len(set(known.values())) == pairs
        asked = np.flatnonzero(answers != IGNORE)
        assert asked.min() >= 2 * pairs
        assert sorted(tokens[asked]) == sorted(known)
        assert [known[token] for token in tokens[asked]] == answers[asked].tolist()
        assert all(tokens[i + 1] == answers[i] for i in asked if i + 1 < length)


def test_keys_and_values_are_tokens_of_their_own(draw: Draw) -> None:
    spec = MQAR(pairs=8, fewest_pairs=8, keys=8, values=16)
    for tokens, _ in draw(spec, 63):
        assert set(tokens[0:16:2]) == set(range(8))
        assert 8 <= tokens[1:16:2].min() <= tokens[1:16:2].max() < 24
        assert len(spec.words) == 24
        # No key stands anywhere but in its pair and where it is asked.
        assert (tokens < 8).sum() == 16


def test_distances_follow_the_power_law() -> None:
    """A single pair is asked in slot s with p(s) ~ s^(power - 1)."""
    for power in (0.01, 1.0):
        sampler = TASKS.make(MQAR(pairs=1, fewest_pairs=1, power=power), 17)
        slots = [
            int(np.flatnonzero(sampler.sample(np.random.default_rng(i)).answers != IGNORE)[0]) // 2
            for i in range(3000)
        ]
        expected = np.arange(1, 9) ** (power - 1)
        found = np.bincount(slots, minlength=9)[1:9]
        assert found / 3000 == pytest.approx(expected / expected.sum(), abs=0.03)


def test_examples_to_train_on_have_few_pairs_more_often() -> None:
    sampler = TASKS.make(MQAR(pairs=8, fewest_pairs=4), 63)
    drawn = [sampler.sample_to_train(np.random.default_rng(i)) for i in range(3000)]
    numbers = np.bincount([(example.answers != IGNORE).sum() for example in drawn], minlength=9)
    expected = 1 / np.arange(4, 9)
    assert not numbers[:4].any()
    assert numbers[4:] / 3000 == pytest.approx(expected / expected.sum(), abs=0.03)
