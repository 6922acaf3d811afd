"""Where the tokens of a batch stand: what masks and position encodings are computed from."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class Places:
    """The places of a batch's tokens.

    Visibility follows `index`, the count of real tokens before a token in its row, so that it is
    the same with padding on either side. Encodings follow `positions`, which start anew in each
    document unless they are given. None stands for the plain case: 0, 1, 2, ... in every row.
    """

    length: int
    device: torch.device
    positions: Int[Tensor, "rows length"] | None = None
    index: Int[Tensor, "batch length"] | None = None
    documents: Int[Tensor, "batch length"] | None = None
    valid: Bool[Tensor, "batch length"] | None = None

    @property
    def plain(self) -> bool:
        """Whether only the mask itself decides what is seen."""
        return self.documents is None and self.valid is None

    def positions_or_range(self) -> Int[Tensor, "rows length"]:
        """Return positions of shape [batch, length], or [1, length] where all rows are alike."""
        return self._range() if self.positions is None else self.positions

    def index_or_range(self) -> Int[Tensor, "rows length"]:
        """Return the index of shape [batch, length], or [1, length] where all rows are alike."""
        return self._range() if self.index is None else self.index

    def _range(self) -> Tensor:
        return torch.arange(self.length, device=self.device)[None]


def places(
    tokens: Int[Tensor, "batch length"],
    positions: Int[Tensor, "*rows length"] | None = None,
    document_ids: Int[Tensor, "batch length"] | None = None,
    padding_mask: Bool[Tensor, "batch length"] | None = None,
) -> Places:
    """Return the places of a batch.

    Args:
        positions: given positions, of shape [batch, length] or [length].
        document_ids: tokens with different ids do not see each other; a document is one stretch of
            its row.
        padding_mask: True where a token is real, False where it is padding.

    Raises:
        ValueError: a shape that does not fit the tokens.
    """
    if tokens.ndim != 2:
        raise ValueError(f"tokens: found shape {list(tokens.shape)}; expected [batch, length]")
    for name, given in [("document_ids", document_ids), ("padding_mask", padding_mask)]:
        if given is not None and given.shape != tokens.shape:
            raise ValueError(
                f"{name}: found shape {list(given.shape)}; "
                f"expected that of the tokens, {list(tokens.shape)}"
            )
    valid = None if padding_mask is None else padding_mask.bool()
    index = None if valid is None else (valid.long().cumsum(-1) - 1).clamp(min=0)
    if positions is not None:
        positions = _rows(positions, tokens)
    elif document_ids is not None:
        positions = _within_documents(document_ids, index)
    else:
        positions = index
    return Places(tokens.shape[1], tokens.device, positions, index, document_ids, valid)


def _rows(positions: Tensor, tokens: Tensor) -> Tensor:
    positions = positions[None] if positions.ndim == 1 else positions
    if positions.shape[-1] != tokens.shape[1] or positions.shape[0] not in (1, tokens.shape[0]):
        raise ValueError(
            f"positions: found shape {list(positions.shape)}; "
            f"expected {list(tokens.shape)} or [{tokens.shape[1]}]"
        )
    return positions


def _within_documents(documents: Tensor, index: Tensor | None) -> Tensor:
    """Count from the first token of each document's stretch."""
    if index is None:
        index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    starts = torch.ones_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    first = torch.where(starts, index, 0).cummax(-1).values
    return index - first
