"""What a step of training asks of the processes that make it together; here, of one alone."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archwright.data.batches import share_of
from archwright.data.inputs import IGNORE, Batch, Inputs
from archwright.model.model import Decoder, Output
from archwright.optim import Optimizers
from archwright.parts.branch import Branch
from archwright.scale.layout import ONE, Layout

if TYPE_CHECKING:
    from archwright.scale.held_parameters import HeldParameters

T = TypeVar("T")


class Passes(Protocol):
    """Forward passes over parts of a batch, which are microbatches."""

    def loss(self, part: Batch) -> Tensor:
        """Return the loss of a part: the model is computed up to its end."""

    def hidden(self, part: Batch) -> tuple[Tensor, Tensor]:
        """Return what a model gives up to a stage that is not its last, and what is to be minimised besides."""


class Processes:
    """Processes that train a run together: one alone, which has all rows and whole parameters. `Group` has many."""

    layout = ONE
    stop_asked = False
    """True if another rank received SIGTERM."""

    @property
    def is_first(self) -> bool:
        """True on the rank that decides, prints and writes."""
        return True

    def first(self, work: Callable[[], T]) -> T:
        """Call a function on rank 0 alone, and return its result on every rank."""
        return work()

    @property
    def rank(self) -> int:
        """Its place among those that have rows of their own."""
        return 0

    @property
    def size(self) -> int:
        """How many have rows of their own."""
        return self.layout.num_readers

    def cut(self, model: Decoder) -> None:
        """Let this process hold its part of a model that is whole, and the same in all."""

    def rows(self, part: Batch) -> Batch:
        """Return of a part of a batch what is this process's: the rows of its group, and of these its tokens."""
        return self.tokens(part)

    def tokens(self, batch: Batch) -> Batch:
        """Return of the rows of a batch the tokens that are this process's."""
        return batch

    def dealt(self, items: Iterable[T]) -> Iterator[tuple[T, bool]]:
        """Deal items out: yield one in each round, and whether it is this process's or stands for none that is left."""
        return ((item, True) for item in items)

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums of numbers over processes, in float64."""
        return [*numbers]

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over processes of values without a gradient."""
        return values

    def add_up_counts(self, branches: Iterable[Branch]) -> None:
        """Add up over processes what branches have counted in a step."""

    def before_part(self, model: nn.Module, *, is_last: bool) -> None:
        """Do what comes before the forward pass over a part of a batch: gradients are added up after the last."""

    def backward(self, model: nn.Module, parts: Sequence[Batch], passes: Passes) -> None:
        """Add up the gradients of the losses of parts of a batch, of each what is this process's."""
        for number, part in enumerate(parts, 1):
            self.before_part(model, is_last=number == len(parts))
            passes.loss(part).backward()

    def without_gradients(self) -> AbstractContextManager[Any]:
        """Return what passes that need no gradients are computed in."""
        return torch.inference_mode()

    def output(self, model: nn.Module, batch: Batch) -> Output | None:
        """Return what a model gives for a batch; None where other processes have it."""
        out: Output = model(**batch.inputs.given())
        return out

    def take(self, optimizers: Optimizers) -> Optimizers:
        """Let optimizers move what this process holds of their parameters."""
        return optimizers

    def held(self) -> "HeldParameters | None":
        """Return what this process holds of the parameters; None: all."""
        return None

    def bring_gradients(self) -> None:
        """Give the parameters that optimizers move the gradients of a step."""

    def drop_gradients(self) -> None:
        """Drop them."""

    def norm(self, own: Tensor) -> Tensor:
        """Return the norm of gradients, of which this process's have the norm `own`."""
        return own


ALONE = Processes()
"""A process that trains a run by itself."""


class OneOf(Processes):
    """One of several processes, which waits for no other: its steps tell how long those of all take."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def rows(self, part: Batch) -> Batch:
        return self.tokens(part[share_of(len(part.targets), 0, self.size)])

    def tokens(self, batch: Batch) -> Batch:
        return stretch_of(batch, 0, self.layout.context)


PER_TOKEN = ("tokens", "position_ids", "segment_ids", "padding_mask", "token_type_ids")
"""Inputs that have something for each token."""


def stretch_of(batch: Batch, rank: int, size: int) -> Batch:
    """Return the chunk of each row of a batch that belongs to one of many processes, all of which have as many
    tokens: rows of another number end in padding."""
    if size == 1:
        return batch
    length = -(-batch.targets.shape[1] // size)
    batch = _padded(batch, size * length - batch.targets.shape[1])
    own = slice(rank * length, (rank + 1) * length)
    given = {
        name: x[:, own] if name in PER_TOKEN else x for name, x in batch.inputs.given().items()
    }
    return replace(batch, inputs=Inputs(**given), targets=batch.targets[:, own])


def _padded(batch: Batch, number: int) -> Batch:
    """Return a batch with so much padding at the end of its rows."""
    if not number:
        return batch
    real = {"padding_mask": torch.ones_like(batch.targets, dtype=torch.bool)}
    given = {
        name: F.pad(x, (0, number)) if name in PER_TOKEN else x
        for name, x in (real | batch.inputs.given()).items()
    }
    targets = F.pad(batch.targets, (0, number), value=IGNORE)
    return replace(batch, inputs=Inputs(**given), targets=targets)


def share_threads(threads: int | str, layout: Layout) -> None:
    """Let this process have its share of the threads of a machine."""
    assert isinstance(threads, int), "threads are decided"
    torch.set_num_threads(max(1, threads // layout.local))
