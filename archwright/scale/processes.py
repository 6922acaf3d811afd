"""Operations of a training step on all ranks; in this module, on a single rank."""

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
    from archwright.scale.shards import ModelShards

T = TypeVar("T")


class Passes(Protocol):
    """Forward passes over microbatches."""

    def loss(self, part: Batch) -> Tensor:
        """Return the loss of a microbatch after the last pipeline stage."""

    def hidden(self, part: Batch) -> tuple[Tensor, Tensor]:
        """Return the residual stream after another pipeline stage, and the sum of its auxiliary losses."""


class Processes:
    """All ranks of a run; here, a single one with all sequences and complete parameters. `Group` has several."""

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
        """Index of this rank's group of sequences."""
        return 0

    @property
    def size(self) -> int:
        """Number of groups of ranks with different sequences."""
        return self.layout.num_readers

    def cut(self, model: Decoder) -> None:
        """Shard a model that is complete and equal on all ranks."""

    def rows(self, part: Batch) -> Batch:
        """Return the sequences of this rank, and of these the local tokens."""
        return self.tokens(part)

    def tokens(self, batch: Batch) -> Batch:
        """Return the local tokens of all sequences of a batch."""
        return batch

    def dealt(self, items: Iterable[T]) -> Iterator[tuple[T, bool]]:
        """Distribute items: yield one per round, and False if it is a placeholder in the last round."""
        return ((item, True) for item in items)

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """All-reduce numbers in float64."""
        return [*numbers]

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of values over ranks, without a gradient."""
        return values

    def add_up_counts(self, branches: Iterable[Branch]) -> None:
        """All-reduce the counts of branches in a step."""

    def before_part(self, model: nn.Module, *, is_last: bool) -> None:
        """Prepare the forward pass of a microbatch: gradients are summed over ranks after the last one."""

    def backward(self, model: nn.Module, parts: Sequence[Batch], passes: Passes) -> None:
        """Accumulate the gradients of local microbatches."""
        for number, part in enumerate(parts, 1):
            self.before_part(model, is_last=number == len(parts))
            passes.loss(part).backward()

    def without_gradients(self) -> AbstractContextManager[Any]:
        """Return the context manager of passes without gradients."""
        return torch.inference_mode()

    def output(self, model: nn.Module, batch: Batch) -> Output | None:
        """Return the model's output; None except on the last pipeline stage."""
        out: Output = model(**batch.inputs.given())
        return out

    def take(self, optimizers: Optimizers) -> Optimizers:
        """Replace the optimizers' parameters by their local shards."""
        return optimizers

    def held(self) -> "ModelShards | None":
        """Return the local shards; None if parameters are complete."""
        return None

    def bring_gradients(self) -> None:
        """Set the gradients of the local shards after the backward passes of a step."""

    def drop_gradients(self) -> None:
        """Delete the gradients of the model."""

    def norm(self, own: Tensor) -> Tensor:
        """Return the norm of all gradients; `own` is the norm of the local ones."""
        return own


ALONE = Processes()
"""A single rank."""


class OneOf(Processes):
    """One rank of several, without communication, to measure the time of a step."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def rows(self, part: Batch) -> Batch:
        return self.tokens(part[share_of(len(part.targets), 0, self.size)])

    def tokens(self, batch: Batch) -> Batch:
        return stretch_of(batch, 0, self.layout.context)


PER_TOKEN = ("tokens", "position_ids", "segment_ids", "padding_mask", "token_type_ids")
"""Inputs with one value per token."""


def stretch_of(batch: Batch, rank: int, size: int) -> Batch:
    """Return a rank's chunks of each sequence; padding makes those of all ranks equally long."""
    if size == 1:
        return batch
    inputs, targets = batch.inputs.given(), batch.targets
    length = -(-targets.shape[1] // size)
    if missing := size * length - targets.shape[1]:
        real = {"padding_mask": torch.ones_like(targets, dtype=torch.bool)}
        inputs = {
            name: F.pad(x, (0, missing)) if name in PER_TOKEN else x
            for name, x in (real | inputs).items()
        }
        targets = F.pad(targets, (0, missing), value=IGNORE)
    ranges = stretches(size * length, rank, size)

    def chunks(x: Tensor) -> Tensor:
        return torch.cat([x[:, start:stop] for start, stop in ranges], 1)

    inputs = {name: chunks(x) if name in PER_TOKEN else x for name, x in inputs.items()}
    return replace(batch, inputs=Inputs(**inputs), targets=chunks(targets))


def stretches(length: int, rank: int, size: int) -> list[tuple[int, int]]:
    """Return the token ranges of a rank: of 2 R halves of R chunks, halves r and 2 R - 1 - r.

    Under a causal mask, all ranks then have as many pairs of queries and keys. Chunks of an odd number of tokens are
    left whole. Source: Llama 3, 2024, section 3.3.2.
    """
    half, odd = divmod(length // size, 2)
    if odd:
        return [(rank * (2 * half + 1), (rank + 1) * (2 * half + 1))]
    return [(i * half, (i + 1) * half) for i in (rank, 2 * size - 1 - rank)]


def share_threads(threads: int | str, layout: Layout) -> None:
    """Give this rank an equal share of the threads of its machine."""
    assert isinstance(threads, int), "threads are decided"
    torch.set_num_threads(max(1, threads // layout.local))
