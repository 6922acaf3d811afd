"""Batches and held-out windows of synthetic tasks, with examples drawn on demand."""

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import numpy as np

from archwright.data.batches import share_of
from archwright.data.eval_windows import ListedWindows
from archwright.data.inputs import IGNORE, Batch, Inputs
from archwright.data.tasks import TASKS, Example, Sampler
from archwright.data.tasks.base import Ids
from archwright.spec.errors import UserError
from archwright.spec.fingerprint import differing
from archwright.spec.tasks import Task

Side = Literal["train", "held_out"]
SIDES: tuple[Side, Side] = ("train", "held_out")

FORMAT = 1
"""Version of fingerprints; incremented if the same seeds give different examples."""
HELD_OUT_SHARE = 8
"""Inverse of the share of held-out examples."""
NUM_HELD_OUT = 2048
"""Number of held-out examples."""
MOST_TRIES = 1000
"""Maximum number of draws for one example; if every draw fails, the task has too few different examples."""


class TaskText:
    """One side of a task, as an endless text of examples.

    Example i of a seed depends only on (seed, i). It consists of `begin_of_text` and `context_length` - 1 further
    tokens. The sides have no common examples, because the hash of an example's tokens decides its side.
    """

    num_documents = NUM_HELD_OUT
    num_bytes = 0

    def __init__(self, task: Task, side: Side, begin_of_text: int, context_length: int) -> None:
        self.task, self.side, self.begin_of_text = task, side, begin_of_text
        self.context_length = context_length
        self.fingerprint = hashlib.blake2b(
            json.dumps([FORMAT, side, differing(task), NUM_HELD_OUT], sort_keys=True).encode(),
            digest_size=16,
        ).hexdigest()

    def __len__(self) -> int:
        """Return the number of tokens of all held-out examples."""
        return NUM_HELD_OUT * self.context_length

    @cached_property
    def sampler(self) -> Sampler:
        return self.sampler_of(self.context_length)

    def sampler_of(self, context_length: int) -> Sampler:
        """Return a sampler of examples for another context length.

        Raises:
            UserError: the task needs a longer context.
        """
        if context_length < self.task.shortest:
            raise UserError(
                f'model.context_length: found {context_length}; data.text = "{self.task.kind}" with '
                f"{self.task.needs} expects at least {self.task.shortest}"
            )
        sampler: Sampler = TASKS.make(self.task, context_length - 1)
        return sampler

    def batch(self, seed: int, indices: Sequence[int], sampler: Sampler | None = None) -> Batch:
        """Return the batch of examples with these indices."""
        drawn = [self._drawn(seed, index, sampler or self.sampler) for index in indices]
        tokens = [np.concatenate([[self.begin_of_text], example.tokens]) for example in drawn]
        answers = [np.concatenate([[IGNORE], example.answers]) for example in drawn]
        return Batch(Inputs(np.stack(tokens)), np.stack(answers))

    def _drawn(self, seed: int, index: int, sampler: Sampler) -> Example:
        draw = sampler.sample_to_train if self.side == "train" else sampler.sample
        for attempt in range(MOST_TRIES):
            generator = np.random.default_rng((seed, index, attempt, int(self.side == "held_out")))
            example = draw(generator)
            if _side(example) == self.side:
                return example
        raise UserError(
            f'data.task: "{self.task.kind}" has too few different examples to hold some out; give it more tokens, or '
            "a larger model.context_length"
        )


class TaskBatches:
    """Batches of new examples in every step, as a pure function of (seed, step)."""

    lengths = None

    def __init__(self, text: TaskText, batch_size: int, seed: int = 0) -> None:
        self.text, self.batch_size, self.seed = text, batch_size, seed
        _ = text.sampler  # raises if the context is too short

    def at(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        rows = share_of(self.batch_size, rank, world_size)
        first = step * self.batch_size
        return self.text.batch(self.seed, range(first + rows.start, first + rows.stop))


class TaskWindows(ListedWindows):
    """Held-out examples for evaluation, up to `max_tokens` tokens.

    All seeds of a run share them. Bits per byte are undefined, because examples are not text.
    """

    counts_answers = True
    num_bytes = 0

    def __init__(
        self, text: TaskText, context_length: int, batch_size: int, max_tokens: int | None = None
    ) -> None:
        sampler = text.sampler_of(context_length)
        wanted = NUM_HELD_OUT if max_tokens is None else max(1, max_tokens // context_length)
        number = min(NUM_HELD_OUT, wanted)
        self.num_tokens = number * context_length

        def batch(start: int, numbers: Ids) -> Batch:
            return text.batch(0, numbers.tolist(), sampler)

        super().__init__(np.arange(number), batch_size, batch)


def _side(example: Example) -> Side:
    digest = hashlib.blake2b(np.ascontiguousarray(example.tokens).tobytes(), digest_size=8).digest()
    return "train" if int.from_bytes(digest, "little") % HELD_OUT_SHARE else "held_out"
