"""Batches as a pure function of (seed, step), so that checkpoints store only the step."""

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
"""Number of documents per block when lengths are summed."""


class TokenSource(Protocol):
    """A one-dimensional sequence of tokens: a `TokenStore` or an integer array."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> NDArray[np.integer[Any]]: ...


class TextLengths(NamedTuple):
    """Lengths of texts over an epoch; tokens attend only within their text."""

    mean: float
    """Mean length over tokens: sum of squared lengths / sum of lengths."""
    target: float
    """Target tokens per text token; 1 if there are no separate targets."""
    share: float = 1.0
    """Text tokens / tokens counted by the run; less than 1 if the run counts padding."""


class BatchSource(Protocol):
    """The batches of a training run."""

    @property
    def lengths(self) -> TextLengths | None:
        """Lengths of texts; None if each row is one text as long as the context."""

    def at(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return the rows of a step's batch that belong to a rank."""


class Batches:
    """Batches of windows over one sequence of tokens, in pseudorandom order.

    An epoch cuts the tokens into windows and visits each window once. The objective sets their length and overlap (for
    next-token prediction, `context_length` + 1 tokens that overlap by one). Each epoch has a different offset and
    order. `packing="document_mask"` needs `end_of_text`, an attribute of a `TokenStore`.

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
            extra = self.window_length - context_length
            raise UserError(
                f"data.text: the text is too short: {self.window_length} tokens are needed "
                f"(model.context_length{f' + {extra}' if extra else ''}), there are {len(tokens)}. Give more "
                f"text, or set model.context_length to {max(len(tokens) - extra, 1)} or less."
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
        # The offset ranges over all leftover tokens, so that some epoch visits the last ones.
        self._num_offsets = len(tokens) - self.windows_per_epoch * self._stride - overlap + 1

    def at(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return the rows of a step's batch that belong to a rank."""
        share = share_of(self.batch_size, rank, world_size)
        # Objectives draw random numbers for the full batch, so that batches do not depend on the world size.
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
        """Lengths of documents, cut at windows; None without document masks or a token store."""
        offsets: Ids | None = getattr(self.tokens, "offsets", None)
        if self.end_of_text is None or offsets is None:
            return None
        squares, stride, context = 0, self._stride, self.context_length
        for first in range(0, len(offsets) - 1, BLOCK):
            edges = np.asarray(offsets[first : first + BLOCK + 1])
            begin, end = edges[:-1], edges[1:]
            head = np.minimum(end, (begin // stride + 1) * stride) - begin
            full, rest = np.divmod(end - begin - head, stride)
            squares += int((head**2 + full * stride**2 + rest**2).sum())
        # Sources and targets of documents are proportional to the source and target of a full window.
        mean = squares / int(offsets[-1]) * context / stride
        return TextLengths(mean, self._examples.objective.target_length(context) / context)

    def _starts(self, rows: Ids) -> list[int]:
        epochs, indices = np.divmod(rows, self.windows_per_epoch)
        keys = mix(epochs.astype(np.uint64) + self._key)
        offsets = (mix(keys) % np.uint64(self._num_offsets)).astype(np.int64)
        windows = permuted(indices, self.windows_per_epoch, keys)
        starts: list[int] = (offsets + windows * self._stride).tolist()
        return starts


def share_of(batch_size: int, rank: int, world_size: int) -> slice:
    """Return the slice of a rank's rows of a batch."""
    share, rest = divmod(batch_size, world_size)
    assert not rest, f"a batch of {batch_size} does not split over {world_size} processes"
    return slice(rank * share, (rank + 1) * share)


def _documents(tokens: Ids, end_of_text: int) -> tuple[Ids, Ids]:
    """Return positions within documents, and document ids; every row begins a document."""
    first = tokens == end_of_text
    first[:, 0] = True
    columns = np.arange(tokens.shape[1])
    starts = np.maximum.accumulate(np.where(first, columns, 0), axis=1)
    return columns - starts, np.cumsum(first, axis=1) - 1
