"""Kernels of softmax attention, by name: the reference and the fast ones."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from archwright.parts.kernels.eager import eager
from archwright.parts.kernels.flex import flex, prepare_blocks
from archwright.parts.kernels.scores import ScoreMods as ScoreMods
from archwright.parts.kernels.sdpa import prepare_dense as prepare_dense
from archwright.parts.kernels.sdpa import sdpa
from archwright.parts.masks import AttentionMask
from archwright.spec.errors import UserError


class Kernel(NamedTuple):
    """Softmax attention, and the preparation of its mask."""

    run: Callable[[Tensor, Tensor, Tensor, AttentionMask, ScoreMods], Tensor]
    """(query [b, t, h, d], key [b, s, kv, d], value [b, s, kv, e], mask, scores) -> [b, t, h, e].

    out = softmax(scale * query key^T) value over the visible keys, with the changes of `ScoreMods`. Each key-value head
    serves h / kv adjacent query heads."""
    prepare: Callable[[AttentionMask], object] = prepare_dense
    """Called before each layer, which may be compiled, to compute the results of `mask.once` in advance."""


KERNELS = {"eager": Kernel(eager), "sdpa": Kernel(sdpa), "flex": Kernel(flex, prepare_blocks)}
"""Kernels by name; `archwright.cpu.blockwise` adds itself."""


def kernel_of(name: str) -> Kernel:
    """Return a kernel by name.

    Raises:
        UserError: the name is not registered.
    """
    if name not in KERNELS:
        hint = ": import archwright.cpu.blockwise first" if name == "blockwise" else ""
        raise UserError(f'kernel: found "{name}"; expected one of {", ".join(KERNELS)}{hint}')
    return KERNELS[name]
