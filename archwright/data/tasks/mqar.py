"""Multi-query associative recall."""

import numpy as np

from archwright.data.inputs import IGNORE
from archwright.data.tasks.base import Example, Sampler
from archwright.spec.tasks import MQAR


class MQARSampler(Sampler):
    """k_1 v_1 ... k_n v_n, then slots of two tokens with queries.

    Each key is queried once: it fills a slot together with its value. The slot, counted from 1, is drawn from the free
    slots with p(slot) ~ slot^(power - 1). All other slots contain random values.

    In Zoology, a random token follows a queried key. Here, its value does, so that no example contradicts itself.
    """

    def __init__(self, spec: MQAR, length: int) -> None:
        self.spec, self.length = spec, length
        assert spec.pairs != "auto"
        assert spec.fewest_pairs != "auto"
        self.pairs = spec.pairs
        self.numbers = np.arange(spec.fewest_pairs, spec.pairs + 1)
        self.shares = 1 / self.numbers / (1 / self.numbers).sum()
        self.chance = 1 / spec.values

    def sample(self, generator: np.random.Generator) -> Example:
        """Draw an example with all pairs."""
        return self._with_pairs(self.pairs, generator)

    def sample_to_train(self, generator: np.random.Generator) -> Example:
        """Draw an example with a random number of pairs."""
        return self._with_pairs(int(generator.choice(self.numbers, p=self.shares)), generator)

    def _with_pairs(self, pairs: int, generator: np.random.Generator) -> Example:
        spec = self.spec
        keys = generator.permutation(spec.keys)[:pairs]
        values = spec.keys + generator.permutation(spec.values)[:pairs]
        # Gumbel top-k: the slots with the largest log p + noise, in order, are draws without replacement.
        slots = np.arange(1, (self.length + 1) // 2 - pairs + 1)
        noisy = (spec.power - 1.0) * np.log(slots) + generator.gumbel(size=len(slots))
        places = 2 * pairs + 2 * np.argsort(-noisy)[:pairs]
        tokens = spec.keys + generator.integers(spec.values, size=self.length + 1)
        tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2] = keys, values
        tokens[places], tokens[places + 1] = keys, values
        answers = np.full(self.length + 1, IGNORE)
        answers[places] = values
        return Example(tokens[: self.length], answers[: self.length])
