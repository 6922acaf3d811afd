"""Model inputs, and batches of inputs and targets."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

Array = Any
"""A NumPy array during data preparation; a tensor afterwards."""

IGNORE = -100
"""Target of positions without a loss, as in torch's cross-entropy."""


@dataclass(frozen=True)
class Inputs:
    """The arguments of a model's forward pass; an absent array is None.

    Shapes: [batch, length]; prefix_lengths [batch]; decoder arrays of an encoder-decoder [batch, decoder_length].
    """

    tokens: Array
    position_ids: Array | None = None
    """Position of each token; default 0, 1, 2, ... over the tokens of its document, without padding."""
    segment_ids: Array | None = None
    """Document of each token; tokens attend only within their document."""
    padding_mask: Array | None = None
    """True for real tokens, False for padding."""
    prefix_lengths: Array | None = None
    """Length of each row's bidirectional prefix, for prefix masks."""
    token_type_ids: Array | None = None
    """Segment of each token within its row: 0 or 1."""
    draws: Array | None = None
    """Uniform random numbers in [0, 1) for sampling the generator's tokens; -1 elsewhere."""
    decoder_tokens: Array | None = None
    decoder_segment_ids: Array | None = None
    decoder_padding_mask: Array | None = None

    def given(self) -> dict[str, Array]:
        """Return the arrays that are not None, by name, as keyword arguments for a model."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: array for name, array in arrays.items() if array is not None}

    def map(self, function: Callable[[Array], Array]) -> "Inputs":
        """Apply a function to each array."""
        return Inputs(**{name: function(array) for name, array in self.given().items()})


@dataclass(frozen=True)
class Batch:
    """Model inputs, and targets [batch, length] with IGNORE at positions without a loss."""

    inputs: Inputs
    targets: Array
    sequence_targets: Array | None = None
    """Class of each row [batch], if rows are classified. 0: the second segment follows the first; 1: it does not."""

    def map(self, function: Callable[[Array], Array]) -> "Batch":
        """Apply a function to each array."""
        classes = None if self.sequence_targets is None else function(self.sequence_targets)
        return Batch(self.inputs.map(function), function(self.targets), classes)

    def __getitem__(self, rows: slice) -> "Batch":
        return self.map(lambda array: array[rows])

    def split(self, parts: int) -> list["Batch"]:
        """Split the rows into `parts` of nearly equal size."""
        size, larger = divmod(len(self.targets), parts)
        ends = [(i + 1) * size + min(i + 1, larger) for i in range(parts)]
        return [self[start:end] for start, end in zip([0, *ends], ends, strict=False)]
