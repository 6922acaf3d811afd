"""Inputs of a model, and the targets of a batch."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

Array = Any
"""An array of numpy where text becomes batches; a tensor from there on."""

IGNORE = -100
"""Target of a position that is not counted, as in torch's cross-entropy."""


@dataclass(frozen=True)
class Inputs:
    """The arguments of a model's forward pass by their names; None where a batch has none.

    Shapes: [batch, length], prefix_lengths [batch]; those of the decoder's side of an encoder-decoder
    [batch, decoder_length].
    """

    tokens: Array
    position_ids: Array | None = None
    """Where each token stands; by default 0, 1, 2, ... among the real tokens of its document."""
    segment_ids: Array | None = None
    """Tokens with different ids do not see each other."""
    padding_mask: Array | None = None
    """True where a token is real."""
    prefix_lengths: Array | None = None
    """How many tokens of each row see each other whole, for prefix masks."""
    token_type_ids: Array | None = None
    """Which segment of its row each token is in: 0 or 1."""
    draws: Array | None = None
    """A uniform number of [0, 1) at each token that a generator proposes, by which it is drawn; -1 at others."""
    decoder_tokens: Array | None = None
    decoder_segment_ids: Array | None = None
    decoder_padding_mask: Array | None = None

    def given(self) -> dict[str, Array]:
        """Return what is not None by name, as models are called with."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: array for name, array in found.items() if array is not None}

    def map(self, function: Callable[[Array], Array]) -> "Inputs":
        """Return the inputs with a function applied to each."""
        return Inputs(**{name: function(array) for name, array in self.given().items()})


@dataclass(frozen=True)
class Batch:
    """Inputs and the targets of the model's logits, [batch, length]; IGNORE where nothing is to be predicted."""

    inputs: Inputs
    targets: Array
    sequence_targets: Array | None = None
    """What each row is as a whole, [batch]: 0 where its second segment follows the first, else 1; None where rows are
    not judged."""

    def map(self, function: Callable[[Array], Array]) -> "Batch":
        """Return the batch with a function applied to each array."""
        judged = None if self.sequence_targets is None else function(self.sequence_targets)
        return Batch(self.inputs.map(function), function(self.targets), judged)

    def __getitem__(self, rows: slice) -> "Batch":
        """Return some of the rows."""
        return self.map(lambda array: array[rows])

    def split(self, parts: int) -> list["Batch"]:
        """Return the batch in `parts` whose numbers of rows are as equal as can be."""
        size, larger = divmod(len(self.targets), parts)
        ends = [(i + 1) * size + min(i + 1, larger) for i in range(parts)]
        return [self[start:end] for start, end in zip([0, *ends], ends, strict=False)]
