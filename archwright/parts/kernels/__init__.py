"""Kernels of softmax attention, by name: the reference and the fast ones."""

from collections.abc import Callable

from torch import Tensor

from archwright.parts.kernels.eager import eager
from archwright.parts.kernels.flex import flex, prepare_blocks
from archwright.parts.kernels.scores import ScoreMods as ScoreMods
from archwright.parts.kernels.sdpa import prepare_dense as prepare_dense
from archwright.parts.kernels.sdpa import sdpa
from archwright.parts.leaves import is_watched
from archwright.parts.masks import AttentionMask
from archwright.spec.errors import UserError

Kernel = Callable[[Tensor, Tensor, Tensor, AttentionMask, ScoreMods], Tensor]
"""(query [b, t, h, d], key [b, s, kv, d], value [b, s, kv, e], mask, scores) -> [b, t, h, e].

out = softmax(scale * query key^T) value over the visible keys, with the changes of `ScoreMods`. Each key-value head
serves h / kv adjacent query heads."""

KERNELS: dict[str, Kernel] = {"eager": eager, "sdpa": sdpa, "flex": flex}
"""Kernels by name; `archwright.cpu.blockwise` registers itself."""

_PREPARATIONS: dict[Kernel, Callable[[AttentionMask], object]] = {
    eager: prepare_dense,
    sdpa: prepare_dense,
    flex: prepare_blocks,
}


def register_kernel(
    name: str, kernel: Kernel, prepare: Callable[[AttentionMask], object] = prepare_dense
) -> None:
    """Register a kernel.

    Args:
        prepare: called before each layer, which may be compiled, to compute the results of `mask.once` in advance.
    """
    KERNELS[name], _PREPARATIONS[kernel] = kernel, prepare


def kernel_of(name: str) -> Kernel:
    """Return a kernel by name.

    Raises:
        UserError: the name is not registered.
    """
    if name not in KERNELS:
        hint = ": import archwright.cpu.blockwise first" if name == "blockwise" else ""
        raise UserError(f'kernel: found "{name}"; expected one of {", ".join(KERNELS)}{hint}')
    return KERNELS[name]


def prepare(kernel: Kernel | None, mask: AttentionMask) -> None:
    """Prepare a mask for a kernel, outside of compiled layers; a trace needs no mask."""
    if is_watched():
        return
    if kernel in _PREPARATIONS:
        _PREPARATIONS[kernel](mask)
    # A compiled layer only reads the cached property.
    if mask.pattern.needs_length:
        _ = mask.text_lengths
