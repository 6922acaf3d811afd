"""Estimated times against closed formulas, with made-up rates."""

import pytest
import torch

from archwright.machine.rates import MOVING, Rates
from archwright.machine.timing_cache import Measurement
from archwright.model.build import build
from archwright.parts.linear import Linear
from archwright.planning.cost import flops_per_token, next_token_flops
from archwright.spec.errors import UserError
from archwright.spec.read import load_run, preset_names
from archwright.spec.run_spec import RunSpec
from archwright.spec.scale_down import tiny_run
from archwright.training import step_time as room
from archwright.training.step_time import decode_time, prefill_time, step_time

NEVER = 1e30
"""A rate at which nothing takes time."""
SHAPE = {"dim": 32, "num_layers": 2, "context_length": 16, "vocab_size": 64}
HEADS, HEAD_DIM, ROWS = 2, 16, 3


def run(**changes: object) -> RunSpec:
    given = {
        **{f"model.{name}": value for name, value in SHAPE.items()},
        "model.attention.num_heads": HEADS,
        "model.attention.num_kv_heads": 1,
        "batch_size": ROWS,
        "machine.precision": "fp32",
        "machine.kernel": "eager",
        "machine.loss": "whole",
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    return load_run("modern").override(*(f"{name}={value}" for name, value in given.items()))


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """FLOP/s of products, bytes/s of what moves wide and narrow numbers, and seconds of a call: those of the machine
    that is made up."""
    made_up = {"product": NEVER, "moving": NEVER, "narrow": NEVER, "call": 0.0}

    def rates(precision: str) -> Rates:
        products = {f"{kind} 2x2x2": made_up["product"] for kind in ("map", "gradient", "batch")}
        moving = made_up["moving" if precision == "fp32" else "narrow"]
        return Rates(precision, products | {f"{kind} 2": moving for kind in MOVING})

    monkeypatch.setattr(room, "measure_rates", rates)
    monkeypatch.setattr(
        room,
        "_time_of_a_call",
        lambda: Measurement(dict.fromkeys(("training", "prefill", "decode"), made_up["call"])),
    )
    return made_up


def test_products_of_a_step(speeds: dict[str, float]) -> None:
    """3 (2 weights + 4 layers * heads * width * length) for each token: the eager kernel leaves out no pair."""
    speeds["product"] = 1e9
    found = run()
    weights = sum(m.weight.numel() for m in build(found.model).modules() if isinstance(m, Linear))
    length = found.model.context_length
    between = 4 * SHAPE["num_layers"] * HEADS * HEAD_DIM * length
    flops = 3 * (2 * weights + between) * ROWS * length
    time = step_time(found)
    assert time.seconds == pytest.approx(flops / 1e9, rel=1e-9)
    assert time.tokens_per_second == pytest.approx(ROWS * length / time.seconds)


def test_products_of_reading_and_writing(speeds: dict[str, float]) -> None:
    """The head is asked for the last token of a text alone; a token behind it is what planning counts."""
    speeds["product"] = 1e9
    found, length = run(), 12
    model = build(found.model, device="meta")
    maps = sum(m.weight.numel() for m in model.modules() if isinstance(m, Linear))
    head = SHAPE["dim"] * SHAPE["vocab_size"]
    between = 4 * SHAPE["num_layers"] * HEADS * HEAD_DIM
    read = 2 * (maps - head) * length + 2 * head + between * length * length
    assert prefill_time(found, length).seconds == pytest.approx(read / 1e9, rel=1e-9)
    written = next_token_flops(model, length + 1)
    assert decode_time(found, length).seconds == pytest.approx(written / 1e9, rel=1e-9)


def test_narrow_numbers_move_at_rates_of_their_own(speeds: dict[str, float]) -> None:
    """In 16 bits, where what moves 32 takes no time, a step takes some; in 32 it takes none."""
    times = {}
    for precision in ("fp32", "bf16"):
        speeds["moving"], speeds["narrow"] = NEVER, 1e9
        times[precision] = step_time(run(machine__precision=precision)).seconds
    assert times["bf16"] > 1e6 * times["fp32"]


@pytest.mark.slow
def test_calls_and_bytes_take_time_of_their_own(speeds: dict[str, float]) -> None:
    speeds["call"] = 1e-3
    calls = step_time(run()).seconds / 1e-3
    assert calls == pytest.approx(round(calls))
    assert step_time(run(model__num_layers=4)).seconds / 1e-3 > 1.5 * calls
    speeds["call"], speeds["moving"] = 0.0, 1e9
    assert step_time(run(model__dim=64)).seconds > 1.5 * step_time(run()).seconds


@pytest.mark.slow
@pytest.mark.parametrize(
    "larger",
    [
        {"model__dim": 64},
        {"model__num_layers": 3},
        {"model__context_length": 32},
        {"model__vocab_size": 128},
        {"batch_size": 2 * ROWS},
    ],
    ids=str,
)
def test_what_is_larger_takes_longer(speeds: dict[str, float], larger: dict[str, int]) -> None:
    speeds.update(product=1e9, moving=1e9, call=1e-6)
    assert step_time(run(**larger)).seconds > step_time(run()).seconds


@pytest.mark.slow
def test_longer_texts_and_more_of_them_take_longer(speeds: dict[str, float]) -> None:
    speeds.update(product=1e9, moving=1e9, call=1e-6)
    found = run(model__context_length=64)
    for time in (prefill_time, decode_time):
        short, long, several = time(found, 8), time(found, 32), time(found, 32, rows=4)
        assert short.seconds < long.seconds < several.seconds
        assert several.tokens_per_second > long.tokens_per_second


EXPERTS = {"model__feedforward__kind": "experts", "model__feedforward__num_experts": 4}


def test_products_of_experts(speeds: dict[str, float]) -> None:
    """Those that a token goes through; the eager kernel leaves out no pair."""
    speeds["product"] = 1e9
    found, length = run(**EXPERTS), SHAPE["context_length"]
    model = build(found.model, device="meta")
    hidden = (
        4 * SHAPE["num_layers"] * HEADS * HEAD_DIM * (length - 1) / 2
    )  # pairs that a mask hides
    flops = (flops_per_token(model, length) + 3 * hidden) * ROWS * length
    assert step_time(found).seconds == pytest.approx(flops / 1e9, rel=1e-9)
    written = next_token_flops(model, length)
    assert decode_time(found, length - 1).seconds == pytest.approx(written / 1e9, rel=1e-9)


def test_products_of_two_stacks(speeds: dict[str, float]) -> None:
    """A source and a shorter target, then a token behind both, which reads no source again."""
    speeds["product"] = 1e9
    found = run(model__encoder__kind="stack", model__cross_attention__kind="softmax")
    found = found.override("objective.kind=span_corruption", "model.attention.mask.kind=causal")
    length = SHAPE["context_length"]
    target = found.objective.target_length(length)
    assert target < length
    model = build(found.model, device="meta")
    hidden = 4 * SHAPE["num_layers"] * HEADS * HEAD_DIM * target * (target - 1) / 2
    flops = flops_per_token(model, length, target) * length + 3 * hidden
    assert step_time(found).seconds == pytest.approx(ROWS * flops / 1e9, rel=1e-9)
    written = next_token_flops(model, length)
    assert decode_time(found, length - 1).seconds == pytest.approx(
        (written - 4 * SHAPE["num_layers"] * HEADS * HEAD_DIM) / 1e9, rel=1e-9
    )


@pytest.mark.sampled(fast=3, full=5)
@pytest.mark.parametrize("name", preset_names("models"))
def test_every_published_model_is_rehearsed(speeds: dict[str, float], name: str) -> None:
    """A step of each; and of those that write, a prefill and a token behind it."""
    speeds.update(product=1e9, moving=1e9, call=1e-6)
    found = tiny_run(load_run(name)).override("model.vocab_size=512")
    length = found.model.context_length
    assert step_time(found).seconds > 0
    if build(found.model, device="meta").can_cache and found.objective.causal:
        assert 0 < decode_time(found, length - 1).seconds < prefill_time(found, length).seconds
    else:
        with pytest.raises(UserError, match=r"read texts whole|text as a whole"):
            prefill_time(found, length)


def test_what_depends_on_values_is_refused_in_a_line(speeds: dict[str, float]) -> None:
    with pytest.raises(UserError, match="16 or 32 bits"):
        step_time(run(machine__precision="fp8"))


@pytest.mark.slow
def test_a_call_takes_time(cache: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured on a tiny model, once for all: between a tenth of a microsecond and a hundredth of a second."""
    monkeypatch.setattr("archwright.machine.rates.SECONDS", 0.0)
    monkeypatch.setattr("archwright.machine.rates.REPEATS", 1)
    before = torch.get_num_threads()
    assert 1e-7 < room._time_of_a_call().values["training"] < 1e-2
    monkeypatch.setattr(room, "_tiny_step", lambda: pytest.fail("measured again"))
    assert 1e-7 < room._time_of_a_call().values["decode"] < 1e-2
    assert torch.get_num_threads() == before
