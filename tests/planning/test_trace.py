"""Traces on fake tensors are what real passes compute and keep."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from archwright.model.build import build
from archwright.model.model import Decoder
from archwright.parts.linear import Linear
from archwright.parts.mixers import RecurrentMixer
from archwright.planning import counter as counter_module
from archwright.planning import trace as trace_module
from archwright.planning.counter import Counter, PartStack
from archwright.planning.fakes import fake
from archwright.planning.trace import trace
from archwright.spec.errors import UserError
from tests.test_tiny_presets import DISTINCT, small

NAMES = DISTINCT[:: max(1, len(DISTINCT) // 30)]


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_is_a_real_pass(name: str) -> None:
    """FLOPs within 0.1 %, kept bytes within 1 %, of each layer and around them."""
    model = build(small(name))
    scans = any(isinstance(mixer, RecurrentMixer) for mixer in model.mixers())
    # A real scan sums gradients of its pieces, outside of any part.
    summing = {"layers.recurrence", "layers.feedforward", "other"} if scans else set[str]()
    for phase, precision in (("training", "autocast"), ("prefill", "fp32"), ("decode", "fp32")):
        given = {"length": 40, "texts": 2, "precision": precision, "kernel": "eager"}
        found = trace(model, phase, **given)
        real = trace(model, phase, **given, real=True)
        for sort in ("product", "leaf", "arithmetic"):
            for when in ("forward", "backward"):
                without = summing if (sort, when) == ("arithmetic", "backward") else ()
                assert found.total(sort, phase=when, without=without) == pytest.approx(
                    real.total(sort, phase=when, without=without), rel=1e-3
                ), (phase, sort, when)
        # The gradients of a real kernel may be laid out so that they are copied once more.
        # The formula of a scan has the bytes of a fused kernel.
        if not scans:
            assert sum(found.num_bytes.values()) == pytest.approx(
                sum(real.num_bytes.values()), rel=0.05
            )
        # A bias of scores keeps more, which no formula counts.
        for layer in () if has_bias(model) else (None, *range(len(found.times))):
            kept, expected = (
                sum(held.num_bytes for held in of.kept if held.layer == layer)
                for of in (found, real)
            )
            rel = 0.02 if scans else 0.01
            assert kept == pytest.approx(expected, rel=rel, abs=2048), (phase, layer)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES[::5])
def test_fakes_are_those_of_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOPs, bytes and kept tensors are equal on torch's fake tensors, which take longer to load."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def torchs(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        with mode:
            return torch.empty_strided(x.shape, x.stride(), dtype=dtype or x.dtype, device="cpu")

    def run(func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0 if tensors[0].is_floating_point() else False
        if not any(isinstance(x, FakeTensor) for x in tensors):
            return func(*args, **kwargs)
        with mode:
            return func(*args, **kwargs)

    # Torch lays out the product of an expanded gradient of hashed keys otherwise: one copy more, 2 % of the bytes.
    one_copy = name == "reformer"

    def costs() -> tuple[float, list[Any]]:
        model = build(small(name), device="meta")
        traces = [
            trace(model, phase, length=40, texts=2, precision=precision)
            for phase, precision in (("training", "autocast"), ("prefill", "bf16"))
        ]
        moved = sum(sum(t.num_bytes.values()) for t in traces)
        bytes_of = [] if one_copy else [t.num_bytes for t in traces]
        kept = [[held.num_bytes for held in t.kept] for t in traces]
        return moved, [[t.flops for t in traces], bytes_of, kept]

    moved, others = costs()
    monkeypatch.setattr(trace_module, "fake_like", torchs)
    monkeypatch.setattr(counter_module, "fake_like", torchs)
    monkeypatch.setattr(counter_module, "is_fake", lambda x: isinstance(x, FakeTensor))
    monkeypatch.setattr(counter_module, "run", run)
    assert costs() == (pytest.approx(moved, rel=0.02), others)


def has_bias(model: Decoder) -> bool:
    """True if positions or distances add to scores."""
    named = ("relative", "distances")
    return any(
        vars(m).get(n) is not None or n in m._modules for m in model.modules() for n in named
    )


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (torch.nonzero, "nonzero"),
        (torch.unique, "unique"),
        (lambda x: x[x > 0], "nonzero"),
        (lambda x: int(x.argmax()), "item"),
    ],
    ids=["nonzero", "unique", "a mask as an index", "a number"],
)
def test_what_depends_on_values_is_refused_by_name(asked: Any, name: str) -> None:
    with Counter(PartStack()).counting(fakes=True), pytest.raises(UserError, match=name):
        asked(fake((3, 4), torch.float32))


def test_fakes_have_no_memory() -> None:
    """A tensor of 4 TB, its transposed view, and their product."""
    with (counter := Counter(PartStack())).counting(fakes=True):
        x = fake((2**20, 2**20), torch.float32)
        y = x @ x.T
    assert (y.shape, y.stride(), y.dtype) == ((2**20, 2**20), (2**20, 1), torch.float32)
    assert counter.flops_of("other", "product") == 2.0**61


def test_one_layer_of_a_kind_stands_for_all() -> None:
    """A step of all layers has the FLOPs and bytes of the trace, sums of gradients among them."""
    model = build(small("llama-3-8b"))
    for module in model.modules():
        if isinstance(module, Linear):
            module.can_join = False
        if "kernel" in vars(module):
            module.use_kernel("eager")
    counter = Counter(parts := PartStack(), model.parameters())
    with counter.counting(fakes=False):
        logits = model(torch.zeros(2, 40, dtype=torch.long)).logits
        parts.follow_backward(logits)
        parts.phase = "backward"
        torch.autograd.backward(logits, torch.empty_like(logits))
    found = trace(model, "training", length=40, texts=2, kernel="eager")
    assert found.times == [4]
    assert sum(found.flops.values()) == pytest.approx(sum(counter.flops.values()), rel=1e-3)
    assert sum(found.num_bytes.values()) == pytest.approx(sum(counter.num_bytes.values()), rel=0.01)


def test_training_is_traced_without_gradients_of_the_caller() -> None:
    model = build(small("modern"))
    with torch.no_grad():
        inside = trace(model, "training", length=8).flops
    assert inside == trace(build(small("modern")), "training", length=8).flops
