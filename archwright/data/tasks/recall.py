"""Tasks of copying and recall: selective copying, needles among filler, multi-query recall, induction over k hops."""

import numpy as np

from archwright.data.inputs import IGNORE
from archwright.data.tasks.base import Example, Sampler
from archwright.spec.tasks import MQAR, KHop, Needle, SelectiveCopy


class SelectiveCopySampler(Sampler):
    """_ s _ _ s' _ s'' _ ... M M M: the answer at the i-th mark M is the i-th non-blank token."""

    def __init__(self, spec: SelectiveCopy, length: int) -> None:
        self.spec, self.length = spec, length
        self.chance = 1 / spec.symbols

    def sample(self, generator: np.random.Generator) -> Example:
        copied, blank = self.spec.copied, self.spec.symbols
        before = self.length - copied
        copies = generator.integers(blank, size=copied)
        tokens = np.full(self.length, blank)
        tokens[np.sort(generator.permutation(before)[:copied])] = copies
        tokens[before:] = blank + 1
        answers = np.full(self.length, IGNORE)
        answers[before:] = copies
        return Example(tokens, answers)


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


class KHopSampler(Sampler):
    """The answer at i is the token after k hops from i.

    hop(i) is the largest j <= i with x_(j-1) = x_i. If a hop has no such j, i has no answer.
    """

    def __init__(self, spec: KHop, length: int) -> None:
        self.spec, self.length = spec, length
        self.chance = 1 / spec.symbols

    def sample(self, generator: np.random.Generator) -> Example:
        tokens = generator.integers(self.spec.symbols, size=self.length)
        last = np.full(self.spec.symbols, -1)
        # Failed hops lead to an extra position at the end, and this position leads to itself.
        hop = np.full(self.length + 1, self.length)
        for i, token in enumerate(tokens.tolist()):
            if last[token] >= 0:
                hop[i] = last[token] + 1
            last[token] = i
        position = hop
        for _ in range(self.spec.k - 1):
            position = hop[position]
        answers = np.append(tokens, IGNORE)[position[:-1]]
        return Example(tokens, answers)
