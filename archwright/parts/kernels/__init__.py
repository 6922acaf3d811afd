"""Kernels of softmax attention behind one interface: the plain reference and the fast ones."""

from collections.abc import Callable

from torch import Tensor

from archwright.parts.kernels.blockwise import blockwise
from archwright.parts.kernels.eager import eager
from archwright.parts.kernels.sdpa import sdpa
from archwright.parts.masks import View

Kernel = Callable[[Tensor, Tensor, Tensor, View, float, float], Tensor]
"""(query [b, t, h, d], key [b, t, kv, d], value [b, t, kv, d], view, scale, dropout)
-> [b, t, h, d].

weights = softmax(scale * query key^T) over the visible keys; out = weights value; h / kv
neighbouring query heads share a key-value head."""

KERNELS: dict[str, Kernel] = {"eager": eager, "sdpa": sdpa, "blockwise": blockwise}
