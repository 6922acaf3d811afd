"""The context of a pass over a stretch of each text, of which other processes have the rest.

No process is asked here: what the others do is in `context`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from archwright.parts.context import Context
from archwright.parts.masks import AttentionMask, MaskPattern
from archwright.parts.token_layout import TokenLayout


class StretchContext(Context, ABC):
    """The context of one of several equal stretches of texts.

    Args:
        whole: where the tokens of whole rows stand.
        tokens: ids of those of the stretch, [batch, length].
        number: which stretch it is, counted from 0.
    """

    def __init__(self, whole: TokenLayout, tokens: Tensor, number: int) -> None:
        length = tokens.shape[1]
        self._columns = (number * length, (number + 1) * length)
        self._whole = whole
        super().__init__(whole.columns(*self._columns), len(tokens), tokens=tokens)

    @abstractmethod
    def all_keys(self, state: Any, *new: Tensor) -> Sequence[Tensor]: ...

    def _new_mask(self, pattern: MaskPattern, num_heads: int) -> AttentionMask:
        return AttentionMask(pattern, self._whole).of_columns(*self._columns)


class LastStretch(StretchContext):
    """The context of the last stretch in a process that asks no other, to be timed: through a causal mask its queries
    see most, so that all wait for it. Its own keys stand for those of the stretches before."""

    def __init__(self, whole: TokenLayout, tokens: Tensor) -> None:
        self._times = whole.length // tokens.shape[1]
        super().__init__(whole, tokens, self._times - 1)

    def all_keys(self, state: Any, *new: Tensor) -> list[Tensor]:
        return [torch.cat([x] * self._times, 1) for x in new]
