"""Kernels of softmax attention behind one interface: the plain reference and the fast ones."""

from collections.abc import Callable

from torch import Tensor

from archwright.parts.kernels.blockwise import blockwise
from archwright.parts.kernels.eager import eager
from archwright.parts.kernels.flex import flex
from archwright.parts.kernels.scores import Scores as Scores
from archwright.parts.kernels.sdpa import sdpa
from archwright.parts.masks import View

Kernel = Callable[[Tensor, Tensor, Tensor, View, Scores], Tensor]
"""(query [b, t, h, d], key [b, s, kv, d], value [b, s, kv, e], view, scores) -> [b, t, h, e].

weights = softmax(scale * query key^T) over the visible keys, as `Scores` says; out = weights value;
h / kv neighbouring query heads share a key-value head."""

KERNELS: dict[str, Kernel] = {"eager": eager, "sdpa": sdpa, "blockwise": blockwise, "flex": flex}
