"""Multi-query associative recall."""

import numpy as np

from archwright.data.inputs import IGNORE
from archwright.data.tasks.base import Example, Sampler
from archwright.spec.tasks import MQAR


class MQARSampler(Sampler):
    """k_1 v_1 ... k_n v_n, then slots of two tokens. Each key is asked in a slot of its own, followed by its value;
    the slot, counted from 1, is drawn with p(slot) ~ slot^(power - 1) among those that are free. Other slots hold
    values drawn at random.

    As in Zoology but for the token behind a key that is asked, which is random there: as here it is the value, what
    the example says of a key is always true.
    """

    def __init__(self, spec: MQAR, length: int) -> None:
        self.spec, self.length = spec, length
        assert spec.pairs != "auto"
        self.pairs = spec.pairs
        self.num_slots = (length + 1) // 2 - self.pairs
        weights = np.arange(1, self.num_slots + 1) ** (spec.power - 1.0)
        self.log_weights = np.log(weights / weights.sum())
        self.chance = 1 / spec.values

    def sample(self, generator: np.random.Generator) -> Example:
        """Draw an example."""
        spec, pairs = self.spec, self.pairs
        keys = generator.permutation(spec.keys)[:pairs]
        values = spec.keys + generator.permutation(spec.values)[:pairs]
        # Draws without replacement are those with the largest of log p + Gumbel noise, in their order.
        noisy = self.log_weights + generator.gumbel(size=self.num_slots)
        places = 2 * pairs + 2 * np.argsort(-noisy)[:pairs]
        tokens = spec.keys + generator.integers(spec.values, size=self.length + 1)
        tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2] = keys, values
        tokens[places], tokens[places + 1] = keys, values
        answers = np.full(self.length + 1, IGNORE)
        answers[places] = values
        return Example(tokens[: self.length], answers[: self.length])
