"""A step taken apart: nothing is lost, FLOPs are those of the plan, and time is charged to who spent it."""

import time
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import archwright as aw
from archwright.inspection.step_meter import StepMeter, metered
from archwright.losses import cross_entropy
from archwright.parts.norms import RMSNorm
from archwright.planning.cost import flops_per_token, run_flops_per_token
from archwright.planning.counter import Counter
from archwright.spec.machine import MachineSpec
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import RunSpec
from archwright.training import profiling
from tests.inspection.test_probes import parts_of

SPEC = ModelSpec(dim=32, num_layers=2, vocab_size=64, context_length=24).override(
    "attention.num_heads=4", "attention.num_kv_heads=2"
)
MACHINE = MachineSpec(
    device="cpu", precision="fp32", float32_matmul_precision="highest", kernel="eager", threads=1
)
CPU = torch.device("cpu")


def profiled(spec: ModelSpec = SPEC, **settings: Any) -> profiling.Profile:
    return profiling.profile(spec, **{"machine": MACHINE, "seconds": 0.01, **settings})


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["norm.kind=layer"],
        ["head.tied=true", "attention.mask.kind=window", "attention.mask.size=5"],
        ["residual.kind=post", "position.kind=learned", "feedforward.kind=gelu"],
        ["layer_kinds.a.attention.kind=none", 'layers.cycle=["a", "default"]'],
        ["layer_kinds.a.feedforward.kind=none", 'layers.cycle=["a", "default"]'],
    ],
)
def test_products_add_up_to_the_plan(words: list[str]) -> None:
    spec = SPEC.override(*words)
    found = profiled(spec, batch_size=3)
    per_token = flops_per_token(aw.build(spec, device="meta"), 24)
    assert found.total.products == pytest.approx(per_token * 3 * 24, rel=1e-12)


def test_products_of_two_stacks_add_up_to_the_plan() -> None:
    """Of 26 tokens 24 become the source, and 6 are read by the decoder."""
    run = RunSpec(model=SPEC.override("encoder.kind=stack", "cross_attention.kind=softmax"))
    run = run.override("objective.kind=span_corruption", "objective.num_sentinels=4")
    assert run.objective.target_length(24) == 6
    found = profiling.profile(run, machine=MACHINE, seconds=0.01, batch_size=3)
    per_token = run_flops_per_token(run, aw.build(run.model, device="meta"))
    assert found.total.products == pytest.approx(per_token * 3 * 24, rel=1e-12)


@pytest.mark.slow
def test_the_plan_is_what_torch_counts() -> None:
    """The reference kernel computes the square of which a causal mask leaves (T + 1) / 2T to be seen."""
    model = aw.build(SPEC).use_kernel("eager")
    tokens = torch.zeros(3, 24, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        cross_entropy(model(tokens).logits, tokens).total.backward()
    kernel = 3 * 2 * 2 * 2 * 32 * (24 * 25 / 2) * 3  # pairs of three texts in two layers
    products = {part.name: part.products for part in profiled(batch_size=3).parts}
    assert products["attention kernel"] == kernel
    linear = sum(products.values()) - kernel
    assert counter.get_total_flops() == pytest.approx(linear + kernel * 2 * 24 / 25)
    assert products["head"] == 3 * 2 * 32 * 64 * 3 * 24
    assert products["norms"] == products["loss"] == products["optimizer"] == 0


@pytest.mark.slow
def test_time_is_charged_to_who_spends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five norms that sleep 4 ms forward and 8 ms backward."""

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            time.sleep(0.004)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            time.sleep(0.008)
            return grads[0]

    monkeypatch.setattr(RMSNorm, "forward", lambda self, x: Slow.apply(x))
    found = profiled()
    norms = next(part for part in found.parts if part.name == "norms")
    assert 0.02 <= norms.forward < 0.06
    assert 0.04 <= norms.backward < 0.12
    rest = [part for part in found.parts if part.name != "norms"]
    assert max(max(part.forward, part.backward) for part in rest) < 0.02
    # All is in the sum, and the same step without a meter takes as long.
    assert found.total.seconds == pytest.approx(found.step, rel=0.5)


def test_a_function_within_a_module_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, meter = aw.build(SPEC), StepMeter(CPU)
    kernel = model.layers[0].attention.kernel  # type: ignore[union-attr]
    slow = kernel._replace(run=lambda *a: time.sleep(0.1) or kernel.run(*a))  # type: ignore[operator,union-attr]
    model.layers[0].attention.kernel = slow  # type: ignore[union-attr]
    with metered(model, meter):
        meter.begin()
        model(torch.zeros(1, 24, dtype=torch.long))
        times = meter.times()
    # On a busy machine all parts take longer, so that they are compared with one another.
    assert times["attention kernel", "forward"] >= 0.1
    assert times["attention projections", "forward"] < times["attention kernel", "forward"]
    assert {part for part, _ in times} >= {
        "embedding",
        "positions",
        "norms",
        "feed-forward",
        "head",
    }


def test_nothing_is_left_behind() -> None:
    model = aw.build(SPEC)
    rotary = next(iter(model.rotaries.values()))
    before = parts_of(model)
    with metered(model, StepMeter(CPU)):
        assert "rotate_query" in vars(rotary)
        assert parts_of(model) != before
    after = parts_of(model)
    assert {k: v or None for k, v in after.items()} == {k: v or None for k, v in before.items()}
    assert "rotate_query" not in vars(rotary)


def counted(what: Any, *tensors: Tensor) -> tuple[float, float, float]:
    meter = StepMeter(CPU)
    with (counter := Counter(meter)).counting(fakes=False):
        what(*tensors)
    flops = (counter.flops_of("other", sort) for sort in ("product", "arithmetic"))
    return *flops, sum(counter.num_bytes.values())  # type: ignore[return-value]


def test_costs_of_operations() -> None:
    x, y = torch.zeros(6, 8), torch.zeros(6, 8)
    assert counted(torch.add, x, y) == (0, 48, 3 * 48 * 4)
    assert counted(Tensor.add_, x, y) == (0, 48, 3 * 48 * 4)
    assert counted(lambda a: a.t()[1:].view(7, 6).detach(), x.clone()) == (0, 0, 0)
    assert counted(torch.clone, x) == (0, 0, 2 * 48 * 4)
    assert counted(torch.sum, x) == (0, 48, 48 * 4 + 4)
    assert counted(torch.add, x, y[:1].expand(6, 8))[2] == 3 * 48 * 4
    assert counted(torch.mm, x, y.t()) == (2 * 6 * 6 * 8, 0, (48 + 48 + 36) * 4)
    assert counted(lambda: torch.empty(9)) == (0, 0, 0)
    table, rows = torch.zeros(100, 8), torch.zeros(3, dtype=torch.long)
    assert counted(torch.nn.functional.embedding, rows, table) == (0, 0, 2 * 3 * 8 * 4)


@pytest.mark.slow
def test_settings_are_kept() -> None:
    seen: list[float] = []
    found = profiled(length=10, batch_size=2, seconds=0.05, on_progress=seen.append)
    assert (found.length, found.batch_size, found.machine.kernel) == (10, 2, "eager")
    assert found.num_parameters == aw.build(SPEC).num_parameters()
    assert found.num_steps >= 3
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    record = found.record()
    assert record["precision"] == "fp32"
    assert [part["name"] for part in record["parts"]][-1] == "other"


@pytest.mark.slow
def test_precision_changes_no_products_and_no_update() -> None:
    wide = profiled(batch_size=2)
    narrow = profiled(batch_size=2, machine=MACHINE.model_copy(update={"precision": "bf16"}))
    assert narrow.total.products == wide.total.products
    updates = [p.num_bytes for f in (wide, narrow) for p in f.parts if p.name == "optimizer"]
    assert updates[0] == updates[1] > 0
