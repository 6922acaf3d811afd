"""Batches as a pure function of (seed, step): nothing to save but the step."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from archwright.data.permutation import mix, permuted
from archwright.spec.errors import UserError

Ids = NDArray[np.int64]


class TokenSource(Protocol):
    """Tokens in a row: a `TokenStore` or any one-dimensional integer array."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> NDArray[np.integer[Any]]: ...


@dataclass(frozen=True)
class Batch:
    """Rows to train on; every array is [batch, context].

    With document masks, `segment_ids` numbers the documents of a row from 0 and `position_ids` counts
    from each one's first token in the row; without, both are None.
    """

    tokens: Ids
    targets: Ids
    position_ids: Ids | None = None
    segment_ids: Ids | None = None

    def __getitem__(self, rows: slice) -> "Batch":
        """Return some of the rows."""
        return Batch(
            self.tokens[rows],
            self.targets[rows],
            self.position_ids[rows] if self.position_ids is not None else None,
            self.segment_ids[rows] if self.segment_ids is not None else None,
        )

    def split(self, parts: int) -> Iterator["Batch"]:
        """Yield the batch in `parts` of equal numbers of rows."""
        rows, rest = divmod(len(self.tokens), parts)
        assert not rest, f"{len(self.tokens)} rows do not split into {parts} parts"
        return (self[i * rows : (i + 1) * rows] for i in range(parts))


class Batches:
    """Windows of a long row of tokens, in an order that is computed, not stored.

    An epoch cuts the tokens into windows of `context_length` + 1 that overlap by one, from an
    offset of its own, and visits each once, in an order of its own. `packing="document_mask"` needs the
    id of `end_of_text`; a `TokenStore` knows it.

    Raises:
        UserError: the text is shorter than one window.
        ValueError: document masks without an end-of-text id.
    """

    def __init__(
        self,
        tokens: TokenSource,
        context_length: int,
        batch_size: int,
        seed: int = 0,
        packing: Literal["concat", "document_mask"] = "concat",
        end_of_text: int | None = None,
    ) -> None:
        if len(tokens) < context_length + 1:
            raise UserError(
                f"data.text: the text is too short: {context_length + 1} tokens are needed "
                f"(model.context_length + 1), there are {len(tokens)}. Give more text, or set "
                f"model.context_length to {max(len(tokens) - 1, 1)} or less."
            )
        self.tokens = tokens
        self.context_length = context_length
        self.batch_size = batch_size
        self.seed = seed
        self.end_of_text: int | None = None
        if packing == "document_mask":
            self.end_of_text = getattr(tokens, "end_of_text", end_of_text)
            if self.end_of_text is None:
                raise ValueError(
                    'packing = "document_mask" needs end_of_text, the id between documents'
                )
        self.windows_per_epoch = max(1, (len(tokens) - context_length) // context_length)
        self._key = mix(np.array([seed], np.uint64))
        # All the room that is left, so that no token at the end is never seen.
        self._num_offsets = len(tokens) - self.windows_per_epoch * context_length

    def at(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return the batch of a step, or the rows of it that belong to one of many processes."""
        rows = self._rows(step, rank, world_size)
        windows = np.empty((len(rows), self.context_length + 1), np.int64)
        for window, start in zip(windows, self._starts(rows), strict=True):
            window[:] = self.tokens[start : start + self.context_length + 1]
        tokens = np.ascontiguousarray(windows[:, :-1])
        targets = np.ascontiguousarray(windows[:, 1:])
        if self.end_of_text is None:
            return Batch(tokens, targets)
        return Batch(tokens, targets, *_documents(tokens, self.end_of_text))

    def _rows(self, step: int, rank: int, world_size: int) -> Ids:
        """Return the numbers, since the start of training, of the rows that a process takes."""
        share, rest = divmod(self.batch_size, world_size)
        assert not rest, f"a batch of {self.batch_size} does not split over {world_size} processes"
        first = step * self.batch_size + rank * share
        return np.arange(first, first + share)

    def _starts(self, rows: Ids) -> list[int]:
        """Return the position of each row's first token."""
        epochs, indices = np.divmod(rows, self.windows_per_epoch)
        keys = mix(epochs.astype(np.uint64) + self._key)
        offsets = (mix(keys) % np.uint64(self._num_offsets)).astype(np.int64)
        windows = permuted(indices, self.windows_per_epoch, keys)
        starts: list[int] = (offsets + windows * self.context_length).tolist()
        return starts


def _documents(tokens: Ids, end_of_text: int) -> tuple[Ids, Ids]:
    """Return positions and document ids of rows; a row's first token begins a document, too."""
    first = tokens == end_of_text
    first[:, 0] = True
    columns = np.arange(tokens.shape[1])
    starts = np.maximum.accumulate(np.where(first, columns, 0), axis=1)
    return columns - starts, np.cumsum(first, axis=1) - 1
