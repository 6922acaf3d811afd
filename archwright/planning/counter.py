"""FLOPs, bytes and kept tensors of a pass, by part of the model, on fake or real tensors.

Every operation reads and writes each of its tensors once, as eager kernels do. Bytes are an upper bound for a fusing
compiler. Leaves are counted by their formulas, see `archwright.parts.leaves`.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from archwright.model.recomputation import PRODUCTS as SAVED_PRODUCTS
from archwright.parts.leaves import LeafCosts, watched
from archwright.planning.fakes import fake_like, is_fake, run

Sort = Literal["product", "leaf", "arithmetic"]
OTHER = "other"
"""Part of costs outside all modules: sums of gradients of reused values, and the engine between parts."""
PAUSED = "paused"
"""Part of operations inside a leaf, already counted by its formula."""

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
"""FLOPs per element of compound operations; an exponential counts as one."""

NO_ARITHMETIC = {
    *("copy", "_to_copy", "clone", "cat", "stack", "fill", "zero", "zeros_like", "ones_like"),
    *("masked_fill", "embedding", "index", "index_select", "gather", "scatter", "arange"),
    *("repeat", "contiguous", "constant_pad_nd", "where"),
}
"""Operations that only move data."""
LOOKUPS = ("embedding", "gather", "index_select", "index")
"""Operations that read only the indexed rows of a table."""
STORES = ("scatter_", "index_copy_", "index_put_")
"""Operations that write only some places of their first tensor."""


class Key(NamedTuple):
    """Key of a cost."""

    layer: int | None
    """Number of the layer; None: outside layers."""
    part: str
    sort: Sort
    phase: str


class Held(NamedTuple):
    """Memory held until the backward pass."""

    layer: int | None
    part: str
    num_bytes: int
    storage: int
    """Number of the storage, shared by views."""


class PartStack:
    """Stack of active parts; costs and time belong to the innermost.

    In the backward pass, a node of the graph belongs to the part of its forward operation. Autograd numbers operations,
    and each part covers ranges of these numbers.
    """

    def __init__(self) -> None:
        self.phase = "forward"
        self._stack: list[tuple[int | None, str]] = [(None, OTHER)]
        self._stretches: list[tuple[int, tuple[int | None, str]]] = []

    @property
    def part(self) -> str:
        """Active part."""
        return self._stack[-1][1]

    @property
    def layer(self) -> int | None:
        """Active layer."""
        return self._stack[-1][0]

    def enter(self, part: str, layer: int | None = None) -> None:
        """Begin a part, by default in the active layer."""
        self._stack.append((self.layer if layer is None else layer, part))
        self._stretch()

    def leave(self) -> None:
        """End the innermost part."""
        self._stack.pop()
        self._stretch()

    @contextmanager
    def region(self, part: str) -> Iterator[None]:
        """Run a block as a part."""
        self.enter(part)
        try:
            yield
        finally:
            self.leave()

    def follow_backward(self, *roots: Tensor) -> None:
        """Enter parts in the backward pass of results of followed modules."""
        starts = [number for number, _ in self._stretches]
        nodes = {root.grad_fn: None for root in roots if root.grad_fn is not None}
        waiting = [*nodes]
        while waiting:
            below = [n for n, _ in waiting.pop().next_functions if n is not None and n not in nodes]
            nodes |= dict.fromkeys(below)
            waiting += below
        for node in nodes:
            place = bisect_right(starts, node._sequence_nr()) - 1
            if type(node).__name__ != "AccumulateGrad" and place >= 0:
                layer, part = self._stretches[place][1]
                node.register_prehook(lambda *_, of=(part, layer): self._enter_node(*of))
                node.register_hook(lambda *_: self.leave())

    def _enter_node(self, part: str, layer: int | None) -> None:
        """Begin a node's part; subsequent gradient sums also belong to its layer."""
        self._stack[0] = (layer, OTHER)
        self.enter(part, layer)

    def _stretch(self) -> None:
        if self.phase == "forward":
            number = torch._C._autograd._get_sequence_nr()
            self._stretches.append((number, self._stack[-1]))


class Counter(TorchDispatchMode):
    """Count FLOPs and bytes by part, and tensors for the backward pass.

    An operation that returns a view moves nothing. Products count 2 m n k; any other operation counts `PER_ELEMENT`, by
    default 1, for each element of its largest tensor.

    Args:
        parts: stack of active parts.
        weights: tensors excluded from `kept`, together with tensors computed from only weights.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: disabling the compiler here would load all of it."""
        return False

    def __init__(self, parts: PartStack, weights: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parts = parts
        self.flops: dict[Key, float] = defaultdict(float)
        self.num_bytes: dict[Key, float] = defaultdict(float)
        self.kept: list[Held] = []
        self.results: list[Held] = []
        """Results of products and leaves, which selective recomputation keeps."""
        self._weights = {_storage(weight) for weight in weights}
        self._made_in: dict[int, int | None] = {}
        self._seen: set[int] = set()
        self._alive: list[Any] = []
        """Storages of fakes and of kept tensors, held so that their numbers stay unique."""
        self.off = False
        self._fakes = False

    @contextmanager
    def counting(self, *, fakes: bool) -> Iterator[None]:
        """Count a pass; `fakes`: create large tensors without memory."""
        self._fakes = fakes
        with saved_tensors_hooks(self._keep, lambda x: x), watched(self._leaf), self:
            yield

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = _tensors((args, *kwargs.values()))
        out = run(func, args, kwargs, given) if self._fakes else func(*args, **kwargs)
        if self.off:
            return out
        name, made = func.overloadpacket.__name__, _tensors((out,))
        before = {_storage(t) for t in given}
        is_weight = bool(given) and before <= self._weights  # computed from only weights
        new = [t for t in made if _storage(t) not in before]
        for t in new:
            self._made_in[_storage(t)] = self.parts.layer
            (self._weights.add if is_weight else self._weights.discard)(_storage(t))
            if self._fakes:
                self._alive.append(t.untyped_storage())
        if self.parts.part == PAUSED:
            return out
        is_free = not new or name.startswith(("empty", "new_empty"))
        if is_free and not func._schema.is_mutable:  # a view, or uninitialized memory
            return out
        moved = (*given, *made)
        if name in LOOKUPS:
            moved = (*made, *made)
        elif name in STORES:
            moved = (*given[1:], given[-1])
        # Expanded rows count once.
        read = sum(min(t.numel() * t.element_size(), _bytes(t)) for t in moved)
        if func.overloadpacket in flop_registry:
            flops = flop_registry[func.overloadpacket](*args, **kwargs, out_val=out)
            self.book("product", flops, read)
            if func in SAVED_PRODUCTS and not is_weight:
                self.add_results(made)
        else:
            plain, flops = name.removesuffix("_").removeprefix("_foreach_"), 0.0
            if plain not in NO_ARITHMETIC:
                elements = [sum(t.numel() for t in _tensors((x,))) for x in (*args, *made)]
                flops = float(PER_ELEMENT.get(plain, 1) * max(elements, default=0))
            self.book("arithmetic", flops, read)
        return out

    def book(self, sort: Sort, flops: float, num_bytes: float) -> None:
        """Add costs to the active part."""
        if self.off:
            return
        key = Key(self.parts.layer, self.parts.part, sort, self.parts.phase)
        self.flops[key] += flops
        self.num_bytes[key] += num_bytes

    def book_leaf(self, costs: LeafCosts, times: int = 1) -> None:
        """Add a multiple of the costs of a leaf's forward pass."""
        sort: Sort = "product" if costs.has_weights else "leaf"
        self.book(sort, times * costs.flops, times * costs.num_bytes)

    def flops_of(self, part: str, *sorts: Sort) -> float:
        """Return the FLOPs of some sorts in a part."""
        return sum(n for k, n in self.flops.items() if k.part == part and k.sort in sorts)

    def claim(self, x: Tensor, layer: int | None) -> None:
        """Attribute a tensor, such as a layer's input, to a layer."""
        self._made_in[_storage(x)] = layer
        self._alive.append(x.untyped_storage())

    def _keep(self, x: Tensor) -> Tensor:
        home = _storage(x)
        self._alive.append(x.untyped_storage())
        if self.parts.phase != "forward" or home in self._weights or home in self._seen:
            return x
        self._seen.add(home)
        layer = self.parts.layer
        made_here = home in self._made_in and self._made_in[home] == layer
        self.kept.append(Held(layer if made_here else None, self.parts.part, _bytes(x), home))
        return x

    def add_results(self, tensors: list[Tensor]) -> None:
        """Add tensors to the results kept by selective recomputation."""
        if self.parts.phase == "forward":
            layer, part = self.parts.layer, self.parts.part
            self.results += [Held(layer, part, _bytes(t), _storage(t)) for t in tensors]

    def _leaf(self, function: Any, formula: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Book a leaf by its formula; on real tensors, also compute it."""
        costs: LeafCosts = formula(*args, **kwargs)
        self.book_leaf(costs)
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        inputs += costs.inputs
        if any(map(is_fake, inputs)):
            out = _Described.apply(self, costs, *inputs)  # type: ignore[no-untyped-call]
            return out[0] if isinstance(costs.results, Tensor) else out
        with watched(None), self.parts.region(PAUSED):
            out = function(*args, **kwargs)
        if costs.is_saved:
            self.add_results(_tensors((out,)))

        def booked(x: Any) -> Any:
            return _Booked.apply(self, costs, x) if isinstance(x, Tensor) else x  # type: ignore[no-untyped-call]

        return tree_map(booked, out)


class _Described(torch.autograd.Function):
    """Leaf on fake tensors, with results and kept tensors from its formula."""

    @staticmethod
    def forward(ctx: Any, counter: Counter, costs: LeafCosts, *inputs: Tensor) -> Any:
        results = (costs.results,) if isinstance(costs.results, Tensor) else costs.results
        made = {id(t): fake_like(t) for t in (*results, *costs.kept) if t.is_meta}
        for t in made.values():
            counter.claim(t, counter.parts.layer)
        if costs.is_saved:
            counter.add_results([*made.values()])
        ctx.save_for_backward(*(made.get(id(t), t) for t in costs.kept))
        ctx.counter, ctx.costs, ctx.shapes = counter, costs, [t.detach() for t in inputs]
        return tuple(made[id(t)] for t in results)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        ctx.counter.book_leaf(ctx.costs, times=2)
        needed = zip(ctx.shapes, ctx.needs_input_grad[2:], strict=True)
        return None, None, *(torch.empty_like(x) if needs else None for x, needs in needed)


class _Booked(torch.autograd.Function):
    """Identity on a leaf's real result; the backward pass books the formula."""

    @staticmethod
    def forward(ctx: Any, counter: Counter, costs: LeafCosts, x: Tensor) -> Tensor:
        ctx.counter, ctx.costs = counter, costs
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        ctx.counter.book_leaf(ctx.costs, times=2)
        return None, None, grad


@contextmanager
def followed(
    modules: Iterable[tuple[str, nn.Module]],
    parts: PartStack,
    layers: Mapping[nn.Module, int] = MappingProxyType({}),
) -> Iterator[None]:
    """Enter the part of each module, by name, during its forward pass; `layers`: numbers of layers."""
    with ExitStack() as attached:
        for name, module in modules:
            number = layers.get(module)
            before = module.register_forward_pre_hook(
                lambda m, x, part=(name, number): parts.enter(*part)
            )
            after = module.register_forward_hook(lambda m, x, out: parts.leave())
            attached.callback(before.remove)
            attached.callback(after.remove)
        yield


def _storage(x: Tensor) -> int:
    number: int = x.untyped_storage()._cdata
    return number


def _bytes(x: Tensor) -> int:
    return x.untyped_storage().nbytes()


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """Return the tensors in arguments and nested lists."""
    found: list[Tensor] = []
    for x in values:
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, list | tuple):
            found += _tensors(x)
    return found
