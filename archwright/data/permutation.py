"""Permutations of 0..n-1, computed per element without memory or state."""

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

ROUNDS = 4
WEYL, FIRST, SECOND = (
    np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
S30, S27, S31 = np.uint64(30), np.uint64(27), np.uint64(31)


def permuted(indices: NDArray[np.int64], n: int, keys: Words) -> NDArray[np.int64]:
    """Map each index by a permutation of range(n), selected by its key.

    A Feistel network permutes the numbers of 2 x half bits. Repeating it until the result is below n
    gives a permutation of range(n) (Black and Rogaway, 2002, cycle walking).
    """
    half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
    round_keys = mix(keys + np.arange(ROUNDS, dtype=np.uint64)[:, None])
    values = _feistel(indices.astype(np.uint64), half, round_keys)
    while (outside := np.flatnonzero(values >= n)).size:
        values[outside] = _feistel(values[outside], half, round_keys[:, outside])
    return values.astype(np.int64)


def _feistel(values: Words, half: np.uint64, round_keys: Words) -> Words:
    """Permute numbers of 2 x `half` bits."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in round_keys:
        left, right = right, left ^ (mix(right + key) & mask)
    return (left << half) | right


def mix(values: Words) -> Words:
    """Return 64-bit hashes of numbers (the finaliser of SplitMix64; Steele et al., 2014)."""
    mixed = values + WEYL
    mixed = (mixed ^ (mixed >> S30)) * FIRST
    mixed = (mixed ^ (mixed >> S27)) * SECOND
    return mixed ^ (mixed >> S31)
