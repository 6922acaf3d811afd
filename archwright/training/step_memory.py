"""How much memory a training step takes on this machine: each tensor of a rehearsed step counts from where it is made
to where it is dropped. What the process grows by follows, with what libraries take and the C library loses."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from archwright.model.decoder import Decoder
from archwright.parts.feedforward import Experts, rows_in_block
from archwright.spec.run_spec import RunSpec
from archwright.training.heap import Heap
from archwright.training.rehearsal import Rehearsal, Watch

LIBRARIES = 70e6
"""Bytes that torch's libraries take in the first step, whatever the model."""
COMPILER = 150e6
"""Bytes of the compiler, where layers are compiled."""
MOST_KEPT, PRODUCT = 1024, 0.56e6
"""Products whose code oneDNN keeps at most, and the bytes of each. A mixture of experts meets other numbers of rows in
every step. In float32 another library computes products, which keeps none."""
PRODUCTS_OF_EXPERT = 6
"""Sorts of products for each number of rows: into the hidden width and out of it, in the forward pass, for gradients of
rows, and for those of weights."""
SETTLES_RECORDED, SETTLES, SETTLES_COMPILED = 0.9, 0.5, 0.15
"""Share of tensors in whose hole something small settles, see `Heap`: where autograd records a graph, in forward passes
and where layers are computed again; elsewhere, in backward passes and in the optimizer; and in all where layers are
compiled, which make few nodes of a graph."""
HEAPS = 9
"""Heaps that are drawn; their mean counts."""
STEPS = 2
"""Steps that are rehearsed: the optimizer's state is there from the second on."""
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "_grouped_mm", "convolution")
"""Operations that a compiler does not compute again for the backward pass."""
FACTORS = ("_to_copy", "add")
"""Operations whose results are the narrow factors of products, and the stream: a compiler keeps both."""
ROOMS = ("empty", "new_empty", "empty_like", "empty_strided")
"""Operations that make room for the results of a kernel."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a training step on this machine."""

    weights: int
    kept: int
    """Of weights, and of what the optimizer keeps between steps."""
    tensors: int
    """Of all tensors at the moment when there are most."""
    process: float
    """What a process grows by, once it has loaded its libraries: estimated from all that comes and goes."""
    with_evaluation: float
    """The same of one that evaluates on held-out text between steps."""


def step_memory(run: RunSpec) -> StepMemory:
    """Return the bytes of a step of a run on a CPU; what its machine leaves open is taken as plain.

    Raises:
        UserError: a model that breaks rules; a run whose steps depend on values.
    """
    compiled = run.machine.compile == "block"
    watch = _Bytes(SETTLES_COMPILED, SETTLES_COMPILED) if compiled else _Bytes()
    rehearsal = Rehearsal(run, watch)
    weights = watch.live
    # A layer that is checkpointed keeps its input, whoever computes it; of one at a time everything comes again.
    keeps_less = compiled and run.machine.activation_checkpointing != "full"
    keeping = _as_compiled(rehearsal.model, watch) if keeps_less else nullcontext()
    with keeping, rehearsal.going_on():
        for _ in range(STEPS):
            rehearsal.step()
            for heap in watch.heaps:
                heap.end_step()
    grown, live, most = watch.grown, watch.live, watch.most
    with rehearsal.going_on():  # uncompiled
        rehearsal.evaluation()
    kept = _products_kept(rehearsal.model, run)
    more = LIBRARIES + COMPILER * compiled + PRODUCT * kept
    return StepMemory(weights, live, most, grown + more, watch.grown + more)


def _products_kept(model: Decoder, run: RunSpec) -> int:
    """Return of how many products oneDNN keeps the code, where experts have any number of rows up to twice the mean."""
    kept = 0
    if run.machine.precision != "bf16":
        return kept
    for experts in {m.spec: m for m in model.modules() if isinstance(m, Experts)}.values():
        number = experts.spec.num_experts
        rows = run.batch_size * model.spec.context_length * experts.spec.top_k
        numbers = 2 * rows // (number * rows_in_block(rows, number))
        kept += PRODUCTS_OF_EXPERT * numbers
    return min(kept, MOST_KEPT)


class _Bytes(Watch):
    """Counts the bytes of tensors that are alive.

    Args:
        recorded: share of tensors in whose hole something settles if they are freed while a graph is recorded.
        otherwise: the same of others.
    """

    def __init__(self, recorded: float = SETTLES_RECORDED, otherwise: float = SETTLES) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.most = 0
        self.heaps = [Heap(seed) for seed in range(HEAPS)]
        self._recorded, self._otherwise = recorded, otherwise
        self.makers: dict[int, str] = {}
        """The operation that made each storage."""

    @property
    def grown(self) -> float:
        """Bytes that heaps have grown to, in the mean."""
        return sum(heap.most for heap in self.heaps) / HEAPS

    def see(self, name: str, given: Any, out: Any) -> None:
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf, name)

    def _count(self, tensor: Tensor, maker: str) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self.makers:
            return
        size, self.makers[storage._cdata] = storage.nbytes(), maker
        self.live += size
        self.most = max(self.most, self.live)
        for heap in self.heaps:
            heap.allocate(storage._cdata, size)
        weakref.finalize(storage, self._drop, storage._cdata, size)

    def _drop(self, storage: int, size: int) -> None:
        self.live -= size
        settles = self._recorded if torch.is_grad_enabled() else self._otherwise
        for heap in self.heaps:
            heap.free(storage, settles)
        del self.makers[storage]


@contextmanager
def _as_compiled(model: Decoder, watch: _Bytes) -> Iterator[None]:
    """Keep for the backward pass what a compiler keeps: what enters layers, factors and results of products, and those
    of kernels. All else, such as rotations and gates, is computed again."""
    entered: set[int] = set()
    inside: list[Any] = []

    def pack(x: Tensor) -> Any:
        storage = x.untyped_storage()._cdata
        if storage in entered or watch.makers.get(storage, "") in (*PRODUCTS, *FACTORS, *ROOMS, ""):
            return x
        return x.size(), x.stride(), x.dtype

    def unpack(x: Any) -> Tensor:
        return x if isinstance(x, Tensor) else torch.empty_strided(*x[:2], dtype=x[2])

    def enter(layer: nn.Module, args: tuple[Any, ...]) -> None:
        entered.add(args[0].untyped_storage()._cdata)
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
        hooks.__enter__()
        inside.append(hooks)

    def leave(layer: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        inside.pop().__exit__(None, None, None)

    handles = [layer.register_forward_pre_hook(enter) for layer in model.all_layers]
    handles += [layer.register_forward_hook(leave) for layer in model.all_layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
