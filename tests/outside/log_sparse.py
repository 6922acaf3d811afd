"""A mask with logarithmically many keys per query. `ranges` is left to its default."""

from typing import Literal

from torch import Tensor

import archwright
from archwright.parts.masks import MaskPattern
from archwright.spec.masks import Mask


class LogSparse(Mask):
    """q - k = 0 or a power of two (Li et al., 2019, LogSparse)."""

    kind: Literal["log_sparse"] = "log_sparse"


class LogSparsePattern(MaskPattern):
    """query - key in {0, 1, 2, 4, 8, ...}."""

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        distance = query - key
        return (distance >= 0) & (distance & (distance - 1) == 0)

    def pairs(self, length: int) -> int:
        return length + sum(length - 2**i for i in range(length.bit_length()) if 2**i < length)


archwright.register(LogSparse, LogSparsePattern)
