"""What a step of training asks of the processes that make it together; here, of one alone."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from archwright.data.batches import share_of
from archwright.data.inputs import Batch
from archwright.model.language_model import LanguageModel
from archwright.optim import Optimizers
from archwright.parts.branch import Branch
from archwright.scale.layout import ONE, Layout

T = TypeVar("T")


class Processes:
    """Processes that train a run together: one alone, which has all rows and whole parameters. `Group` has many."""

    layout = ONE

    @property
    def rank(self) -> int:
        """Its place among those that have rows of their own."""
        return 0

    @property
    def size(self) -> int:
        """How many have rows of their own."""
        return self.layout.num_readers

    def cut(self, model: LanguageModel) -> None:
        """Let this process hold its part of a model that is whole, and the same in all."""

    def rows(self, part: Batch) -> Batch:
        """Return the rows of a part of a batch that are this process's."""
        return part

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

    def take(self, optimizers: Optimizers) -> Optimizers:
        """Let optimizers move what this process holds of their parameters."""
        return optimizers

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
        return part[share_of(len(part.targets), 0, self.size)]


def share_threads(threads: int | str, layout: Layout) -> None:
    """Let this process have its share of the threads of a machine."""
    assert isinstance(threads, int), "threads are decided"
    torch.set_num_threads(max(1, threads // layout.local))
