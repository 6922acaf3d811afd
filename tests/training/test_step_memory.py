"""Rehearsed steps against real ones: every tensor that a real step makes is there, and no other."""

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from archwright.data.inputs import Batch, Inputs
from archwright.machine.precision import Precision
from archwright.model.build import build
from archwright.model.decoder import Decoder
from archwright.planning.activations import CHECKPOINTING
from archwright.spec.errors import UserError
from archwright.spec.read import load_run
from archwright.spec.run_spec import RunSpec
from archwright.training.evaluation import evaluate, rows_at_once
from archwright.training.heap import Heap
from archwright.training.rehearsal import Rehearsal
from archwright.training.step_memory import _Bytes, _products_kept, step_memory
from archwright.training.step_time import Steps

SMALL = (
    *("model.dim=64", "model.num_layers=3", "model.context_length=256", "model.vocab_size=512"),
    *("batch_size=4", "machine.device=cpu", "machine.compile=none", "machine.num_steps=10"),
    *("model.attention.num_heads=4", "model.attention.num_kv_heads=2"),
)

SPANS, REPLACED = (f"objective.kind={kind}" for kind in ("span_corruption", "replaced_tokens"))


class Alive(TorchDispatchMode):
    """Counts the bytes of real tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.most = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.add(leaf)
        return out

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.known:
            self.known.add(storage._cdata)
            self.live += storage.nbytes()
            self.most = max(self.most, self.live)
            weakref.finalize(storage, self.drop, storage._cdata, storage.nbytes())

    def drop(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size


def run(*changes: str) -> RunSpec:
    machine = ("machine.precision=bf16", "machine.kernel=blockwise", "machine.loss=whole")
    given = dict(word.split("=", 1) for word in (*SMALL, *machine, *changes))
    found = load_run("modern").override(*(f"{key}={value}" for key, value in given.items()))
    return found.model_copy(update={"optimizer": found.optimizer.with_lrs_resolved()})


@pytest.mark.sampled(full=3)
@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("machine.precision=fp32", "machine.kernel=sdpa"),
        ("optimizer.kind=muon", "machine.loss=chunked"),
        ("machine.activation_checkpointing=full", "grad_accum_steps=2"),
        ("machine.activation_checkpointing=selective", "machine.kernel=sdpa"),
        ("model.feedforward.kind=experts", "model.feedforward.num_experts=4"),
        ("model.attention.mask.kind=window", "model.attention.mask.size=64"),
        ("model.encoder.kind=stack", "model.cross_attention.kind=softmax", SPANS),
    ],
    ids=["plain", "fp32", "muon", "again", "selective", "experts", "window", "two stacks"],
)
def test_tensors_are_those_of_real_steps(changes: tuple[str, ...]) -> None:
    asked = run(*changes)
    planned, real, alive = step_memory(asked), Steps(asked), Alive()
    for parameter in real.model.parameters():
        alive.add(parameter)
    assert planned.weights == pytest.approx(alive.live, rel=1e-3)
    with alive:
        for _ in range(2):
            real.step()
    assert planned.tensors == pytest.approx(alive.most, rel=0.03)
    assert planned.kept == pytest.approx(alive.live, rel=0.05)  # kernels keep their masks
    assert planned.process > planned.tensors


class HeldOut(list[Batch]):
    """A held-out text."""

    num_tokens = num_bytes = 1
    counts_answers = False
    defines_bits_per_byte = True


@pytest.mark.parametrize("changes", [(), ("machine.precision=fp32", "model.vocab_size=2048")])
def test_tensors_are_those_of_a_real_evaluation(changes: tuple[str, ...]) -> None:
    """Behind steps, whose optimizer keeps its state; more rows than those have make it the larger."""
    asked = run(*changes)
    watch = _Bytes(0.0, 0.0)
    rehearsal = Rehearsal(asked, watch)
    with rehearsal.going_on():
        for _ in range(2):
            rehearsal.step()
        watch.most = watch.live
        rehearsal.evaluation()
    real, alive = Steps(asked), Alive()
    for parameter in real.model.parameters():
        alive.add(parameter)
    rows, length = rows_at_once(asked.model.context_length), asked.model.context_length
    tokens = np.random.default_rng(0).integers(int(asked.model.vocab_size), size=(2, rows, length))
    with alive:
        for _ in range(2):
            real.step()
        alive.most = alive.live
        text = HeldOut(Batch(Inputs(one), one) for one in tokens)
        precision = Precision(asked.machine.precision, torch.device("cpu"))
        evaluate(real.model, text, precision)  # type: ignore[arg-type]
    assert watch.most == pytest.approx(alive.most, rel=0.03)
    planned = step_memory(asked)
    assert planned.with_evaluation > planned.process


def test_layers_that_are_computed_again_take_less() -> None:
    plain, selective, full = (
        step_memory(run("batch_size=16", f"machine.activation_checkpointing={how}"))
        for how in CHECKPOINTING
    )
    assert full.tensors < 0.7 * plain.tensors
    assert full.tensors < selective.tensors < 0.9 * plain.tensors


def test_compiled_layers_are_left_to_the_compiler() -> None:
    """Which keeps by itself what is asked for."""
    plain, selective = (
        step_memory(run("machine.compile=block", f"machine.activation_checkpointing={how}"))
        for how in ("none", "selective")
    )
    assert selective == plain


def test_a_hole_is_used_again_unless_something_settles_in_it() -> None:
    for settles, most in ((0.0, 16), (1.0, 25)):
        heap = Heap()
        for turn in range(10):
            heap.allocate(turn, 1_000_000)
            heap.allocate(100 + turn, 1_500_000)  # stays, and fits into no hole
            heap.free(turn, settles)
        assert most - 0.1 < heap.most / 1e6 < most + 0.1


@pytest.mark.parametrize(("recorded", "most"), [(False, 16), (True, 25)])
def test_something_settles_where_a_graph_is_recorded(recorded: bool, most: int) -> None:
    watch, kept = _Bytes(1.0, 0.0), []
    with torch.set_grad_enabled(recorded), watch:
        for _ in range(10):
            passing = torch.empty(250_000)
            kept.append(torch.empty(375_000))
            del passing
    assert most - 0.1 < watch.grown / 1e6 < most + 0.1


def test_what_settled_goes_at_the_end_of_a_step() -> None:
    heap = Heap()
    for turn in range(10):
        heap.allocate(turn, 1_000_000)
        heap.allocate(100 + turn, 1_500_000)
        heap.free(turn, settles=1.0)
        heap.end_step()
    assert 15.9 < heap.most / 1e6 < 16.1


def test_tensors_that_go_together_go_in_any_order() -> None:
    """Those of a graph go as their addresses have it, which differ from process to process."""
    grown = set()
    for order in (range(20), reversed(range(20))):
        heap = Heap()
        for key in range(20):
            heap.allocate(key, 100_000 * (key + 1))
            heap.allocate(100 + key, 1_500_000)
        for key in order:
            heap.free(key, settles=0.5)
        for key in reversed(range(20)):
            heap.allocate(key, 100_000 * (key + 1))
        grown.add(heap.most)
    assert len(grown) == 1


def test_code_of_products_is_kept_in_16_bits() -> None:
    """A mixture meets other numbers of rows in every step, of which in float32 nothing is kept."""
    experts = ("model.feedforward.kind=experts", "model.feedforward.num_experts=4")
    narrow, wide = (
        run(*experts, f"machine.precision={precision}") for precision in ("bf16", "fp32")
    )
    model = build(narrow.model.resolved(), device="meta")
    assert isinstance(model, Decoder)
    assert _products_kept(model, narrow) > 100
    assert _products_kept(model, wide) == 0


def test_steps_that_depend_on_values_are_refused_in_a_line() -> None:
    with pytest.raises(UserError, match="16 or 32 bits"):
        step_memory(run("machine.precision=fp8"))


def test_a_generator_proposes_tokens_without_values() -> None:
    """More than its detector alone takes."""
    both = run("model.generator.kind=stack", "model.head.predicts=replaced", REPLACED)
    assert step_memory(both).tensors > step_memory(run()).tensors
