"""Batches as a pure function of (seed, step): nothing to save but the step."""

from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from archwright.data.inputs import Batch, Inputs
from archwright.data.objectives import Examples
from archwright.data.permutation import mix, permuted
from archwright.spec.errors import UserError

Ids = NDArray[np.int64]
BLOCK = 1 << 20
"""Documents whose lengths are added up at a time."""


class TokenSource(Protocol):
    """Tokens in a row: a `TokenStore` or any one-dimensional integer array."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> NDArray[np.integer[Any]]: ...


class TextLengths(NamedTuple):
    """Lengths of texts that do not see each other, over an epoch."""

    mean: float
    """Mean length of the text of a token, in tokens: the sum of squared lengths over the sum of lengths."""
    target: float
    """Tokens of targets for each token of the texts; 1 if there are no targets."""
    share: float = 1.0
    """Tokens of the texts for each token that a run counts."""


class BatchSource(Protocol):
    """The batches of a training."""

    @property
    def lengths(self) -> TextLengths | None:
        """Lengths of texts; None if each row is one text as long as the context."""

    def at(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return the batch of a step, or the rows of it that belong to one of many processes."""


class Batches:
    """Windows of a long row of tokens, in an order that is computed, not stored.

    An epoch cuts the tokens into windows, whose length and overlap are the objective's (of the next token, windows of
    `context_length` + 1 that overlap by one), from an offset of its own, and visits each once, in an order of
    its own. `packing="document_mask"` needs the id of `end_of_text`; a `TokenStore` knows it.

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
        examples: Examples | None = None,
    ) -> None:
        self._examples = examples or Examples()
        self.window_length = self._examples.objective.window_length(context_length)
        overlap = self._examples.objective.overlap
        if len(tokens) < self.window_length:
            more = self.window_length - context_length
            raise UserError(
                f"data.text: the text is too short: {self.window_length} tokens are needed "
                f"(model.context_length{f' + {more}' if more else ''}), there are {len(tokens)}. Give more "
                f"text, or set model.context_length to {max(len(tokens) - more, 1)} or less."
            )
        self.tokens, self.context_length = tokens, context_length
        self.batch_size = batch_size
        self.seed = seed
        self.end_of_text: int | None = None
        if packing == "document_mask":
            self.end_of_text = getattr(tokens, "end_of_text", end_of_text)
            if self.end_of_text is None:
                raise ValueError(
                    'packing = "document_mask" needs end_of_text, the id between documents'
                )
        self._stride = self.window_length - overlap
        self.windows_per_epoch = max(1, len(tokens) // self._stride - 1)
        self._key = mix(np.array([seed], np.uint64))
        # All the room that is left, so that no token at the end is never seen.
        self._num_offsets = len(tokens) - self.windows_per_epoch * self._stride - overlap + 1

    def at(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return the batch of a step, or the rows of it that belong to one of many processes."""
        share = share_of(self.batch_size, rank, world_size)
        # What an objective draws is drawn for the whole batch, so that it is the same in however many processes.
        rows = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        windows = np.empty((len(rows), self.window_length), np.int64)
        for window, start in zip(windows, self._starts(rows), strict=True):
            window[:] = self.tokens[start : start + self.window_length]
        text = Inputs(windows)
        if self.end_of_text is not None:
            text = Inputs(windows, *_documents(windows, self.end_of_text))
        return self._examples.batch(text, self.seed, step)[share]

    @cached_property
    def lengths(self) -> TextLengths | None:
        """Lengths of the documents of a token store, cut where windows end, if rows mask documents."""
        offsets: Ids | None = getattr(self.tokens, "offsets", None)
        if self.end_of_text is None or offsets is None:
            return None
        squares, stride, context = 0, self._stride, self.context_length
        for first in range(0, len(offsets) - 1, BLOCK):
            edges = np.asarray(offsets[first : first + BLOCK + 1])
            begin, end = edges[:-1], edges[1:]
            head = np.minimum(end, (begin // stride + 1) * stride) - begin
            whole, rest = np.divmod(end - begin - head, stride)
            squares += int((head**2 + whole * stride**2 + rest**2).sum())
        # An objective makes a source of a whole window, and a target; those of documents are in proportion.
        mean = squares / int(offsets[-1]) * context / stride
        return TextLengths(mean, self._examples.objective.target_length(context) / context)

    def _starts(self, rows: Ids) -> list[int]:
        """Return the position of each row's first token."""
        epochs, indices = np.divmod(rows, self.windows_per_epoch)
        keys = mix(epochs.astype(np.uint64) + self._key)
        offsets = (mix(keys) % np.uint64(self._num_offsets)).astype(np.int64)
        windows = permuted(indices, self.windows_per_epoch, keys)
        starts: list[int] = (offsets + windows * self._stride).tolist()
        return starts


def share_of(batch_size: int, rank: int, world_size: int) -> slice:
    """Return the rows of a batch that belong to one of many processes."""
    share, rest = divmod(batch_size, world_size)
    assert not rest, f"a batch of {batch_size} does not split over {world_size} processes"
    return slice(rank * share, (rank + 1) * share)


def _documents(tokens: Ids, end_of_text: int) -> tuple[Ids, Ids]:
    """Return positions and document ids of rows; a row's first token begins a document, too."""
    first = tokens == end_of_text
    first[:, 0] = True
    columns = np.arange(tokens.shape[1])
    starts = np.maximum.accumulate(np.where(first, columns, 0), axis=1)
    return columns - starts, np.cumsum(first, axis=1) - 1
