"""Losses of unigrams, bigrams and guessing, as thresholds for a model's loss."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from archwright.data.eval_windows import bits_per_byte
from archwright.data.inputs import IGNORE
from archwright.data.pair_text import PairText
from archwright.data.store import TokenStore
from archwright.data.task_text import TaskText, TaskWindows
from archwright.lab.design.plan import Plan, tokenizers
from archwright.training.data import Material

MOST = 4_000_000
"""Most tokens that are counted, for training and held-out text each."""
PLATEAU = 0.02
"""Distance of the plateau below the entropy of single tokens, as a share of it."""


class Counted(NamedTuple):
    """Loss thresholds of a variant, in the study's unit."""

    learnt: float
    """Loss of bigrams counted in the training tokens of a run."""
    plateau: float
    """Loss of hardly more than token frequencies."""


def counted(plan: Plan) -> dict[str, Counted]:
    """Return the thresholds of each variant; infinite unless the objective is next tokens.

    For a task both are the loss of guessing, as bigrams may be optimal for a Markov chain.
    """
    by_tokens = {
        material.tokenizer.fingerprint: _counted(plan, material)
        for material in tokenizers(plan.arms)
    }
    return {name: by_tokens[arm.material.tokenizer.fingerprint] for name, arm in plan.arms.items()}


def _counted(plan: Plan, material: Material) -> Counted:
    if isinstance(material.held_out, TaskText):
        guessing = (1 - PLATEAU) * answer_entropy(material.held_out)
        return Counted(guessing, guessing)
    if not plan.baseline.run.objective.defines_bits_per_byte:
        return Counted(math.inf, math.inf)
    scale = 1.0
    if plan.unit == "bits per byte":
        text = material.held_out
        scale = bits_per_byte(len(text) - text.num_documents, text.num_bytes)
    return Counted(
        scale * bigram_loss(material, plan.tokens_per_run),
        scale * (1 - PLATEAU) * _entropy(np.bincount(_read(material.held_out, MOST))),
    )


def answer_entropy(text: TaskText) -> float:
    """Return the entropy of held-out answers in nats: the loss of guessing."""
    windows = TaskWindows(text, text.context_length, 64, MOST)
    answers = np.concatenate([batch.targets[batch.targets != IGNORE] for batch in windows])
    return _entropy(np.bincount(answers))


def bigram_loss(material: Material, num_tokens: int) -> float:
    """Return the held-out loss of bigrams of the training text, in nats per token.

    p(b | a) = (n(a, b) + t(a) p(b)) / (n(a) + t(a)), with n the counts in `num_tokens` training tokens, t(a) the
    number of different tokens after a, and p(b) the share of b with one added to each count.
    Source: Witten and Bell, 1991, The zero-frequency problem (method C, interpolated).
    """
    size = material.tokenizer.vocab_size
    seen = _read(material.train, min(num_tokens, MOST))
    asked = _read(material.held_out, MOST)
    if len(seen) < 2 or len(asked) < 2:
        return float("inf")
    single = np.bincount(seen, minlength=size) + 1.0
    single /= single.sum()
    pairs, counts = np.unique(seen[:-1] * size + seen[1:], return_counts=True)
    first = pairs // size
    total = np.bincount(first, weights=counts, minlength=size)
    kinds = np.bincount(first, minlength=size)
    wanted = asked[:-1] * size + asked[1:]
    place = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    number = np.where(pairs[place] == wanted, counts[place], 0)
    before, after = asked[:-1], asked[1:]
    known = total[before] > 0
    mixed = (number + kinds[before] * single[after]) / np.maximum(total[before] + kinds[before], 1)
    return float(-np.log(np.where(known, mixed, single[after])).mean())


def _entropy(counts: NDArray[np.int64]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _read(store: TokenStore | TaskText | PairText, num_tokens: int) -> NDArray[np.int64]:
    assert isinstance(store, TokenStore), "of a task, answers are counted"
    return np.asarray(store.read(0, min(len(store), num_tokens)), dtype=np.int64)
