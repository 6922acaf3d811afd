"""Computed permutations visit every number once, and look random."""

import numpy as np
import pytest

from archwright.data.permutation import mix, permuted


def key(value: int, size: int) -> np.ndarray:
    return np.repeat(mix(np.array([value], np.uint64)), size)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 100, 1000, 4097])
def test_every_number_appears_once(n: int) -> None:
    for seed in range(5):
        order = permuted(np.arange(n), n, key(seed, n))
        assert sorted(order.tolist()) == list(range(n))


def test_elements_do_not_depend_on_their_neighbours() -> None:
    whole = permuted(np.arange(1000), 1000, key(7, 1000))
    some = np.array([999, 3, 500])
    assert permuted(some, 1000, key(7, 3)).tolist() == whole[some].tolist()


def test_each_element_has_a_permutation_of_its_own() -> None:
    """Rows of one batch may lie in two epochs; 33 of 64 numbers, so that cycles are walked."""
    indices, keys = np.arange(33), mix(np.arange(33, dtype=np.uint64))
    alone = [permuted(indices[i : i + 1], 33, keys[i : i + 1])[0] for i in range(33)]
    assert permuted(indices, 33, keys).tolist() == alone


def test_large_domains_stay_inside() -> None:
    n = 10**12 + 39
    order = permuted(np.arange(10_000) * 10**8, n, key(1, 10_000))
    assert len(set(order.tolist())) == 10_000
    assert order.min() >= 0
    assert order.max() < n


def test_orders_are_uncorrelated_with_the_identity_and_with_each_other() -> None:
    n = 10_000
    a, b = (permuted(np.arange(n), n, key(seed, n)) for seed in (0, 1))
    limit = 5 / np.sqrt(n)
    assert abs(np.corrcoef(a, np.arange(n))[0, 1]) < limit
    assert abs(np.corrcoef(a, b)[0, 1]) < limit
    assert abs(np.corrcoef(a[:-1], a[1:])[0, 1]) < limit


def test_each_place_is_hit_about_equally_over_seeds() -> None:
    n, seeds = 10, 5000
    keys = mix(np.arange(seeds, dtype=np.uint64))
    counts = np.bincount(permuted(np.zeros(seeds, np.int64), n, keys), minlength=n)
    chi_square = float(((counts - seeds / n) ** 2 / (seeds / n)).sum())
    assert chi_square < 27.9  # 0.1 % of the chi-square distribution with 9 degrees of freedom


def test_mix_is_splitmix64() -> None:
    # First outputs of the reference implementation for seed 1234567.
    weyl = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        states = np.uint64(1234567) + np.arange(3, dtype=np.uint64) * weyl
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert mix(states).tolist() == expected
