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
from archwright.planning.training_memory import split_one
from archwright.spec.errors import UserError
from archwright.spec.read import load_run, preset_names
from archwright.spec.run_spec import RunSpec
from archwright.spec.scale_down import tiny_run
from archwright.training.evaluation import evaluate, rows_at_once
from archwright.training.rehearsal import Rehearsal, Watch, full_batch
from archwright.training.session import Session

SMALL = (
    *("model.dim=64", "model.num_layers=3", "model.context_length=256", "model.vocab_size=512"),
    *("batch_size=4", "machine.device=cpu", "machine.compile=none", "machine.num_steps=10"),
    *("model.attention.num_heads=4", "model.attention.num_kv_heads=2"),
)

SPANS, REPLACED = (f"objective.kind={kind}" for kind in ("span_corruption", "replaced_tokens"))


class Live:
    """Bytes of the tensors that are alive, now and at most."""

    def __init__(self) -> None:
        self.live = self.most = 0
        self._known: set[int] = set()

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self.live += storage.nbytes()
            self.most = max(self.most, self.live)
            weakref.finalize(storage, self._drop, storage._cdata, storage.nbytes())

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


class Planned(Watch):
    """Counts tensors of a rehearsal."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = Live()

    def see(self, name: str, given: Any, out: Any) -> None:
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.bytes.add(leaf)


class Real(TorchDispatchMode):
    """Counts real tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = Live()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.bytes.add(leaf)
        return out


def session(run: RunSpec) -> Session:
    """Return real steps on one batch of random tokens."""
    dice, spec = np.random.default_rng(0), run.model
    batch = full_batch(
        run,
        lambda rows, length: dice.integers(int(spec.vocab_size), size=(rows, length)),
        run.batch_size,
        spec.context_length,
    )

    class Same:
        def at(self, step: int) -> Batch:
            return batch

    model = build(spec).use_kernel(run.machine.kernel)
    model.checkpoint_activations(run.machine.activation_checkpointing)
    return Session(run, model, Same())


def run(*changes: str) -> RunSpec:
    machine = ("machine.precision=bf16", "machine.kernel=blockwise", "machine.loss=whole")
    given = dict(word.split("=", 1) for word in (*SMALL, *machine, *changes))
    found = load_run("modern").override(*(f"{key}={value}" for key, value in given.items()))
    return found.model_copy(update={"optimizer": found.optimizer.with_lrs_resolved()})


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
    planned, real = Planned(), Real()
    rehearsal, steps = Rehearsal(asked, planned), session(asked)
    for parameter in steps.model.parameters():
        real.bytes.add(parameter)
    assert planned.bytes.live == pytest.approx(real.bytes.live, rel=1e-3)
    for _ in range(2):
        with rehearsal.going_on():
            rehearsal.step()
        with real:
            steps.step()
    assert planned.bytes.most == pytest.approx(real.bytes.most, rel=0.03)
    # Kernels keep their masks.
    assert planned.bytes.live == pytest.approx(real.bytes.live, rel=0.05)


class HeldOut(list[Batch]):
    """A held-out text."""

    num_tokens = num_bytes = 1
    counts_answers = False
    defines_bits_per_byte = True


@pytest.mark.parametrize("changes", [(), ("machine.precision=fp32", "model.vocab_size=2048")])
def test_tensors_are_those_of_a_real_evaluation(changes: tuple[str, ...]) -> None:
    """Behind steps, whose optimizer keeps its state; more rows than those have make it the larger."""
    asked = run(*changes)
    planned, real = Planned(), Real()
    rehearsal, steps = Rehearsal(asked, planned), session(asked)
    for parameter in steps.model.parameters():
        real.bytes.add(parameter)
    rows, length = rows_at_once(asked.model.context_length), asked.model.context_length
    tokens = np.random.default_rng(0).integers(int(asked.model.vocab_size), size=(2, rows, length))
    with rehearsal.going_on():
        rehearsal.step()
        planned.bytes.most = planned.bytes.live
        rehearsal.evaluation()
    with real:
        steps.step()
        real.bytes.most = real.bytes.live
        text = HeldOut(Batch(Inputs(one), one) for one in tokens)
        precision = Precision(asked.machine.precision, torch.device("cpu"))
        evaluate(steps.model, text, precision)  # type: ignore[arg-type]
    assert planned.bytes.most == pytest.approx(real.bytes.most, rel=0.03)


def most(run: RunSpec) -> int:
    """Return the most bytes of a rehearsed step."""
    planned = Planned()
    rehearsal = Rehearsal(run, planned)
    with rehearsal.going_on():
        rehearsal.step()
    return planned.bytes.most


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_analytic_sum_is_near_a_rehearsed_step(precision: str) -> None:
    asked = run(f"machine.precision={precision}", "machine.kernel=sdpa", "batch_size=16")
    model = build(asked.model, device="meta")
    narrow = precision != "fp32"
    estimate = split_one(asked, model, "none", 16, whole_logits=True, narrow=narrow)
    assert estimate == pytest.approx(most(asked), rel=0.3)


@pytest.mark.sampled(fast=3)
@pytest.mark.parametrize("name", preset_names("models"))
def test_every_published_model_is_rehearsed(name: str) -> None:
    assert most(tiny_run(load_run(name)).override("model.vocab_size=512")) > 0


def test_steps_that_depend_on_values_are_refused_in_a_line() -> None:
    with pytest.raises(UserError, match="16 or 32 bits"):
        most(run("machine.precision=fp8"))


def test_a_generator_proposes_tokens_without_values() -> None:
    """More than its detector alone takes."""
    both = run("model.generator.kind=stack", "model.head.predicts=replaced", REPLACED)
    assert most(both) > most(run())
