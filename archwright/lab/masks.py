"""Which masks hide something in texts of a given length."""

import math

from archwright.parts.masks import pairs, pattern_of
from archwright.spec.attention import MaskedAttention
from archwright.spec.masks import Causal, Full, Mask

EXTENTS = (("size", "dilation"), ("local_blocks", "block_size"), ("stride",), ("radius",))
"""Fields whose product is how far a mask reaches, in tokens."""


def is_full(attention: MaskedAttention, dim: int, length: int) -> bool:
    """Tell whether a mask shows what the causal mask does, or everything, in texts of `length` tokens."""
    return type(attention.mask) not in (Causal, Full) and (
        type(effective(attention, dim, length)) in (Causal, Full)
    )


def effective(attention: MaskedAttention, dim: int, length: int) -> Mask:
    """Return the mask that is seen in texts of up to `length` tokens: where one shows as many pairs as the causal
    mask or as the full one, it is that."""
    mask = attention.mask
    seen = pairs(pattern_of(mask, attention.heads(dim)["num_heads"]), length)
    if seen == length * (length + 1) / 2 and (mask.causal or length == 1):
        return Causal()
    return Full() if seen == length**2 else mask


def reach(mask: Mask) -> int:
    """Return how far a mask reaches, in tokens; 0 where no field of it says so."""
    for fields in EXTENTS:
        if hasattr(mask, fields[0]):
            return math.prod(getattr(mask, field, 1) for field in fields)
    return 0
