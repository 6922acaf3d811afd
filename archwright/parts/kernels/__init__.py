"""Kernels of softmax attention behind one interface: the plain reference and the fast ones."""

from collections.abc import Callable

from torch import Tensor

from archwright.parts.kernels.eager import eager
from archwright.parts.kernels.flex import flex
from archwright.parts.kernels.scores import ScoreMods as ScoreMods
from archwright.parts.kernels.sdpa import sdpa
from archwright.parts.masks import AttentionMask
from archwright.spec.errors import UserError

Kernel = Callable[[Tensor, Tensor, Tensor, AttentionMask, ScoreMods], Tensor]
"""(query [b, t, h, d], key [b, s, kv, d], value [b, s, kv, e], view, scores) -> [b, t, h, e].

weights = softmax(scale * query key^T) over the visible keys, as `ScoreMods` says; out = weights value;
h / kv neighbouring query heads share a key-value head."""

KERNELS: dict[str, Kernel] = {"eager": eager, "sdpa": sdpa, "flex": flex}
"""Kernels by name; `archwright.cpu.blockwise` registers one more."""

_PREPARATIONS: dict[Kernel, Callable[[AttentionMask], object]] = {}


def register_kernel(
    name: str, kernel: Kernel, prepare: Callable[[AttentionMask], object] | None = None
) -> None:
    """Register a kernel.

    Args:
        prepare: called once for each mask before a layer that may be compiled, to read the mask's data.
    """
    KERNELS[name] = kernel
    if prepare is not None:
        _PREPARATIONS[kernel] = prepare


def kernel_of(name: str) -> Kernel:
    """Return a kernel by name.

    Raises:
        UserError: it is not registered.
    """
    if name not in KERNELS:
        hint = ": import archwright.cpu.blockwise first" if name == "blockwise" else ""
        raise UserError(f'kernel: found "{name}"; expected one of {", ".join(KERNELS)}{hint}')
    return KERNELS[name]


def prepare(kernel: Kernel | None, view: AttentionMask) -> None:
    """Prepare a mask for a kernel, outside of compiled layers."""
    if kernel in _PREPARATIONS:
        _PREPARATIONS[kernel](view)
