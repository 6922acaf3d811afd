"""How long this machine takes for a step of training, to prefill a text, and to decode a token: the operations of a
rehearsed pass, each at the measured rate of its kind and shape, and what calling one takes."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from archwright.machine.rates import Rates, fastest, measure_rates
from archwright.machine.timing_cache import Measurement, measured
from archwright.model.build import build
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import MachineSpec, RunSpec
from archwright.training.rehearsal import Rehearsal, Watch, full_batch

Passing = Literal["training", "prefill", "decode"]
PLAIN = MachineSpec(device="cpu", precision="fp32", kernel="sdpa")
TINY = ModelSpec(dim=32, num_layers=4, context_length=16, vocab_size=64).override(
    "attention.num_heads=2", "attention.num_kv_heads=1"
)
"""A model so small that calling operations is all that takes time."""
KINDS = {
    "silu": (
        "silu",
        "silu_backward",
        "gelu",
        "gelu_backward",
        "sigmoid",
        "tanh",
        "tanh_backward",
        "exp",
    ),
    "softmax": ("_softmax", "_softmax_backward_data", "softmax", "log_softmax"),
    "sum": ("sum", "mean", "linalg_vector_norm", "_foreach_norm", "amax", "argmax"),
    "to": ("_to_copy",),
    "copy": ("clone", "cat", "gather", "scatter_", "index", "stack"),
}
"""Operations by the measured kind that they move bytes as."""
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "baddbmm_", "linear")
FREE = ("empty", "new_empty", "empty_like", "empty_strided", "detach", "as_strided")


class Operations(Watch):
    """The operations of a pass: those that compute or move something by kind and shape, and the number of all."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[tuple[Any, ...]] = Counter()
        self.calls = 0

    def see(self, name: str, given: Any, out: Any) -> None:
        if name == "device":
            return  # asked of tensors without memory alone
        self.calls += 1
        tensors = [x for x in tree_leaves(given) if isinstance(x, Tensor)]
        if name in PRODUCTS:
            a, b = _factors(name, tensors)
            kind = "batch" if a.ndim == 3 else "gradient" if a.stride(-1) != 1 else "map"
            batch = a.shape[0] if a.ndim == 3 else 1
            self.seen[kind, batch, a.dtype, a.shape[-2], a.shape[-1], b.shape[-1]] += 1
        elif name == "_grouped_mm":
            self._see_experts(*tensors)
        elif "scaled_dot_product" in name:
            backward = 2.5 if "backward" in name else 1
            query, key = tensors[1:3] if backward > 1 else tensors[:2]
            rows, queries, width = math.prod(query.shape[:-2]), *query.shape[-2:]
            self.seen["batch", 2 * rows * backward, query.dtype, queries, width, key.shape[-2]] += 1
            # Few queries wait for the keys and values that they read.
            self.seen["pointwise", key.numel(), key.dtype, int(2 * backward * _bytes(key))] += 1
        elif name not in FREE:
            made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
            homes = {x.untyped_storage()._cdata for x in tensors}
            if (
                name in KIND_OF
                or name.endswith("_")
                or any(x.untyped_storage()._cdata not in homes for x in made)
            ):
                sizes = [_bytes(x) for x in (*tensors, *([] if name.endswith("_") else made))]
                if name == "embedding":
                    sizes = [2 * _bytes(x) for x in made]
                if name == "scatter_":
                    sizes = [2 * _bytes(tensors[-1])]  # where it is written, and nowhere else
                largest = max((*made, *tensors), key=Tensor.numel, default=None)
                of = (1, torch.float32) if largest is None else (largest.numel(), largest.dtype)
                self.seen[KIND_OF.get(name, "pointwise"), *of, sum(sizes)] += 1

    def _see_experts(self, a: Tensor, b: Tensor, ends: Tensor) -> None:
        """Take note of the products of experts, of which all that there are rows for have as many."""
        in_weights = b.ndim == 2  # gradients of weights: [d_in, rows] and [rows, d_out]
        rows = b.shape[0] if in_weights else a.shape[0]
        used = min(len(ends), rows)
        if in_weights:
            self.seen["gradient", 1, a.dtype, a.shape[0], rows // used, b.shape[-1]] += used
        else:
            self.seen["map", 1, a.dtype, rows // used, a.shape[1], b.shape[-1]] += used

    def seconds(self, rates: dict[torch.dtype, Rates]) -> float:
        """Return the time of all that computes or moves something, without that of the calls."""
        total = 0.0
        for (kind, *shape), times in self.seen.items():
            if kind in ("map", "gradient", "batch"):
                batch, dtype, *sizes = shape
                of_dtype = rates.get(dtype, rates[torch.float32])
                flops = 2.0 * batch * math.prod(sizes)
                total += times * flops / of_dtype.product(kind, tuple(sizes))
            else:
                elements, dtype, size = shape
                of_dtype = rates.get(dtype, rates[torch.float32])
                total += times * size / of_dtype.moving(kind, max(1, elements))
        return total


def _factors(name: str, tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the two factors of a product; those of a map hold the weight transposed."""
    if name == "linear":
        return tensors[0].flatten(0, -2), tensors[1].t()
    first, second = tensors[-2:] if name not in ("mm", "bmm") else tensors[:2]
    return first, second


def _bytes(x: Tensor) -> int:
    return min(x.numel() * x.element_size(), x.untyped_storage().nbytes())


@dataclass(frozen=True)
class Speed:
    """What a pass takes, estimated from measured rates."""

    seconds: float
    tokens: int
    age: str
    """When rates were measured; empty: now."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all texts."""
        return self.tokens / self.seconds


def step_time(run: RunSpec) -> Speed:
    """Return the seconds of a training step of a run on this machine's CPU.

    Raises:
        UserError: a model that breaks rules; a run whose steps depend on values.
    """
    seen = Operations()
    rehearsal = Rehearsal(run, seen)
    with rehearsal.going_on():
        rehearsal.step()  # makes the optimizer's state
        seen.seen.clear()
        seen.calls = 0
        rehearsal.step()
    return _speed(seen, rehearsal, run.tokens_per_step, "training")


def prefill_time(run: RunSpec, length: int, rows: int = 1) -> Speed:
    """Return the seconds in which `rows` texts of `length` tokens are read into a cache, in 32 bits."""
    return _passing(run, rows, before=0, length=length)


def decode_time(run: RunSpec, length: int, rows: int = 1) -> Speed:
    """Return the seconds of one more token for each of `rows` texts of `length` tokens, in 32 bits."""
    return _passing(run, rows, before=length, length=1)


def _passing(run: RunSpec, rows: int, before: int, length: int) -> Speed:
    seen = Operations()
    run = run.model_copy(update={"machine": PLAIN})
    rehearsal = Rehearsal(run, seen)
    model = rehearsal.model.use_kernel("blockwise").eval()
    rehearsal.cut_blocks(before or length, before or 1)
    with torch.no_grad(), rehearsal.going_on():
        cache = model.new_cache()
        if before:
            model.hidden(**rehearsal.reading(rows, before, before).given(), cache=cache)
            seen.seen.clear()
            seen.calls = 0
        model.head(model.hidden(**rehearsal.reading(rows, length).given(), cache=cache)[:, -1])
    return _speed(seen, rehearsal, rows * length, "decode" if before else "prefill")


def _speed(seen: Operations, rehearsal: Rehearsal, tokens: int, passing: Passing) -> Speed:
    narrow = (
        "fp32" if rehearsal.run.machine.precision == "auto" else rehearsal.run.machine.precision
    )
    found = {p: measure_rates(p) for p in dict.fromkeys(("fp32", narrow))}
    rates = {torch.float32: found["fp32"], torch.bfloat16: found.get("bf16", found["fp32"])}
    calling = _time_of_a_call()
    # The longest says most: that other work ran beside.
    age = max((calling.age, *(rates.age for rates in found.values())), key=len)
    return Speed(seen.seconds(rates) + calling.values[passing] * seen.calls, tokens, age)


def _time_of_a_call() -> Measurement:
    """Return the seconds that an operation takes whatever it computes, Python's included: those of a tiny model's
    pass, by the number of its operations."""
    from archwright.machine.decide import machine_facts

    return measured(
        {**machine_facts("cpu"), "calls": 5},
        ("training", "prefill", "decode"),
        lambda: {
            "training": _tiny_step(),
            "prefill": _tiny_pass(before=0, length=TINY.context_length),
            "decode": _tiny_pass(before=TINY.context_length // 2, length=1),
        },
    )


def _tiny_step() -> float:
    run = RunSpec(model=TINY, batch_size=1, machine=PLAIN)
    seen = Operations()
    rehearsal = Rehearsal(run, seen)
    with rehearsal.going_on():
        rehearsal.step()
        before = seen.calls
        rehearsal.step()
    real = Steps(run)
    return fastest(real.step) / (seen.calls - before)


def _tiny_pass(before: int, length: int) -> float:
    seen = Operations()
    rehearsal = Rehearsal(RunSpec(model=TINY, batch_size=1, machine=PLAIN), seen)
    with torch.no_grad(), rehearsal.going_on():
        rehearsed = _pass_behind(rehearsal.model.eval(), rehearsal.tokens(1, before))
        seen.calls = 0
        rehearsed(rehearsal.tokens(1, length))
    tokens = torch.zeros(1, before + length, dtype=torch.long)
    with torch.no_grad():
        real = _pass_behind(build(TINY).use_kernel("sdpa").eval(), tokens[:, :before])
        return fastest(lambda: real(tokens[:, before:])) / seen.calls


def _pass_behind(model: Any, before: Tensor) -> Callable[[Tensor], Tensor]:
    """Return what reads tokens behind those before, which a cache keeps; behind none, without a cache."""
    if not before.shape[1]:
        return lambda tokens: model(tokens)
    cache = model.new_cache()
    model.hidden(before, cache=cache)
    return lambda tokens: model.head(model.hidden(tokens, cache=cache)[:, -1])


class Steps:
    """Real steps of a run on one batch of random tokens."""

    def __init__(self, run: RunSpec) -> None:
        import numpy as np

        from archwright.data.inputs import Batch
        from archwright.training.session import Session

        spec = run.model.resolved()
        model = build(spec).use_kernel(run.machine.kernel)
        model.checkpoint_activations(run.machine.activation_checkpointing)
        vocab_size, dice = int(spec.vocab_size), np.random.default_rng(0)
        batch = full_batch(
            run,
            lambda rows, length: dice.integers(vocab_size, size=(rows, length)),
            run.batch_size,
            spec.context_length,
        )

        class Same:
            def at(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
                return batch

        machine = run.machine.model_copy(update={"num_steps": 10})
        run = run.model_copy(update={"model": spec, "machine": machine})
        self.model = model
        self.step: Callable[[], Any] = Session(run, model, Same()).step
