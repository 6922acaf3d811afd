"""The selective copying task: repeat the non-blank tokens of a sequence in order."""

import numpy as np

from archwright.data.inputs import IGNORE
from archwright.data.tasks.base import Example, Sampler
from archwright.spec.tasks import SelectiveCopy


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
