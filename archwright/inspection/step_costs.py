"""FLOPs and bytes of every operation of a step, given to the part at work."""

from collections import defaultdict
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from archwright.inspection.step_meter import StepMeter

PRODUCTS = ("_scaled_dot_product", "_flash", "_efficient_attention", "baddbmm_")
"""Beginnings of the names of products that torch's counter does not know in every form."""

PER_ELEMENT = {
    "native_layer_norm": 7,
    "native_layer_norm_backward": 12,
    "_softmax": 5,
    "_softmax_backward_data": 4,
    "silu": 4,
    "silu_backward": 7,
    "gelu": 5,
    "gelu_backward": 10,
    "mv": 2,
    "linalg_vector_norm": 2,
    "addcmul": 2,
    "lerp": 3,
    "_fused_adamw": 14,
}
"""FLOPs per element of operations that are several in one, an exponential counting as one."""

NO_ARITHMETIC = {
    *("copy", "_to_copy", "clone", "cat", "stack", "fill", "zero", "zeros_like", "ones_like"),
    *("masked_fill", "embedding", "index", "index_select", "gather", "scatter", "arange"),
    *("repeat", "contiguous", "constant_pad_nd", "where"),
}
"""Operations that only move."""


class StepCosts(TorchDispatchMode):
    """Counts while it is entered: by part, FLOPs of products, FLOPs of other arithmetic, and bytes.

    An operation moves the bytes of all tensors that it reads and writes, as if none stayed in a cache;
    one that returns a view moves none. Products count 2 m n k; any other operation counts
    `PER_ELEMENT`, by default 1, for each element of its largest tensor.
    """

    def __init__(self, meter: StepMeter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.meter = meter
        self.products: dict[str, float] = defaultdict(float)
        self.arithmetic: dict[str, float] = defaultdict(float)
        self.num_bytes: dict[str, float] = defaultdict(float)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given, made = _tensors((args, kwargs)), _tensors(out)
        if not _moves(func, name, given, made):
            return out
        part = self.meter.part
        if name in ("embedding", "gather", "index_select", "index"):
            self.num_bytes[part] += 2 * sum(map(_size, made))  # of the table, only rows asked for
        else:
            self.num_bytes[part] += sum(map(_size, (*given, *made)))
        if func.overloadpacket in flop_registry:
            count = flop_registry[func.overloadpacket]
            self.products[part] += count(*args, **(kwargs or {}), out_val=out)
        elif not name.startswith(PRODUCTS):
            self.arithmetic[part] += _arithmetic(name, args, made)
        return out


def _moves(func: Any, name: str, given: list[Tensor], made: list[Tensor]) -> bool:
    """Tell whether an operation touches memory: views and new, empty memory do not."""
    if func._schema.is_mutable:
        return True
    if not made or name.startswith(("empty", "new_empty")):
        return False
    homes = {t.untyped_storage()._cdata for t in given}
    return any(t.untyped_storage()._cdata not in homes for t in made)


def _size(x: Tensor) -> int:
    """Return the bytes of a tensor; rows that are one and the same row count once."""
    return min(x.numel() * x.element_size(), x.untyped_storage().nbytes())


def _arithmetic(name: str, args: tuple[Any, ...], made: list[Tensor]) -> float:
    plain = name.removesuffix("_").removeprefix("_foreach_")
    if plain in NO_ARITHMETIC:
        return 0.0
    elements = [sum(t.numel() for t in _tensors(value)) for value in (*args, *made)]
    return float(PER_ELEMENT.get(plain, 1) * max(elements, default=0))


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors in nested arguments."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
