"""Kernels of softmax attention behind one interface: the plain reference and the fast ones."""

from collections.abc import Callable

from torch import Tensor

from archwright.parts.kernels.blocks import blocks_of
from archwright.parts.kernels.blockwise import blockwise
from archwright.parts.kernels.eager import eager
from archwright.parts.kernels.flex import flex
from archwright.parts.kernels.scores import ScoreMods as ScoreMods
from archwright.parts.kernels.sdpa import sdpa
from archwright.parts.masks import AttentionMask

Kernel = Callable[[Tensor, Tensor, Tensor, AttentionMask, ScoreMods], Tensor]
"""(query [b, t, h, d], key [b, s, kv, d], value [b, s, kv, e], view, scores) -> [b, t, h, e].

weights = softmax(scale * query key^T) over the visible keys, as `ScoreMods` says; out = weights value;
h / kv neighbouring query heads share a key-value head."""

KERNELS: dict[str, Kernel] = {"eager": eager, "sdpa": sdpa, "blockwise": blockwise, "flex": flex}


def prepare(kernel: Kernel | None, view: AttentionMask) -> None:
    """Do what a kernel needs once for a view and a compiled layer could not: to look at the data."""
    if kernel is blockwise and view.kept is None:
        blocks_of(view)
