"""Needles among filler."""

import numpy as np

from archwright.data.inputs import IGNORE
from archwright.data.tasks.base import Example, Sampler
from archwright.spec.tasks import Needle


class NeedleSampler(Sampler):
    """f f k v f f f k' v' f ... k: pairs at random positions; the answer at the last token, k, is v."""

    def __init__(self, spec: Needle, length: int) -> None:
        self.spec, self.length = spec, length
        self.chance = 1 / spec.values

    def sample(self, generator: np.random.Generator) -> Example:
        spec, pairs = self.spec, self.spec.pairs
        keys = generator.permutation(spec.keys)[:pairs]
        values = spec.keys + generator.integers(spec.values, size=pairs)
        tokens = spec.keys + spec.values + generator.integers(spec.fillers, size=self.length)
        # Positions as if each pair were one token, shifted by the number of earlier pairs.
        places = np.sort(generator.permutation(self.length - 1 - pairs)[:pairs]) + np.arange(pairs)
        tokens[places], tokens[places + 1] = keys, values
        query = int(generator.integers(pairs))
        tokens[-1] = keys[query]
        answers = np.full(self.length, IGNORE)
        answers[-1] = values[query]
        return Example(tokens, answers)
