"""Rates of this machine: what lies between measured shapes, what is measured, and for how long it is kept."""

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from archwright.machine import disturbance
from archwright.machine import rates as room
from archwright.machine.rates import Rates, fastest, measure_rates

GIVEN = Rates(
    "fp32",
    {"map 4x16x16": 1e9, "map 64x16x16": 4e9, "map 4x256x16": 2e9, "sum 16": 1e8, "sum 256": 1e10},
)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few shapes, each timed once, and kept in a folder of the test's own."""
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(tmp_path))
    for name, shapes in (
        ("MAPS", [(2, 8, 4)]),
        ("GRADIENTS", [(4, 2, 8)]),
        ("BATCHES", [(2, 4, 2)]),
    ):
        monkeypatch.setattr(room, name, tuple(shapes))
    monkeypatch.setattr(room, "ELEMENTS", (512,))
    monkeypatch.setattr(room, "COLD", 2**12)
    monkeypatch.setattr(room, "REPEATS", 1)
    monkeypatch.setattr(room, "SECONDS", 0.0)


def test_a_measured_shape_has_its_own_rate() -> None:
    assert GIVEN.product("map", (64, 16, 16)) == pytest.approx(4e9, rel=1e-4)
    assert GIVEN.moving("sum", 16) == pytest.approx(1e8, rel=1e-4)


def test_in_the_middle_of_two_is_their_geometric_mean() -> None:
    assert GIVEN.moving("sum", 64) == pytest.approx(math.sqrt(1e8 * 1e10))
    assert 1e8 < GIVEN.moving("sum", 32) < GIVEN.moving("sum", 64) < GIVEN.moving("sum", 128) < 1e10


def test_beyond_the_ends_is_what_the_end_has() -> None:
    assert GIVEN.moving("sum", 2**40) == GIVEN.moving("sum", 256)
    assert GIVEN.moving("sum", 1) == GIVEN.moving("sum", 16)
    assert GIVEN.product("map", (1, 1, 1)) == GIVEN.product("map", (4, 16, 16))


class Clock:
    """Calls that take given seconds, and what the system counts in the meantime."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *calls: tuple[float, int],
        stolen: Sequence[float] = (),
    ) -> None:
        self.calls, self.seconds, self.preempted = [(0.0, 0), *calls], 0.0, 0
        self.stolen, self.lost = [0.0, *stolen], 0.0
        self.made = 0
        watch = SimpleNamespace(
            process_time=lambda: self.seconds, perf_counter=lambda: self.seconds + self.lost
        )
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
        monkeypatch.setattr(room, "time", watch)
        monkeypatch.setattr(room, "preemptions", lambda: self.preempted)

    def __call__(self) -> None:
        seconds, preempted = self.calls[min(self.made, len(self.calls) - 1)]
        self.seconds, self.preempted = self.seconds + seconds, self.preempted + preempted
        self.lost += self.stolen[self.made] if self.made < len(self.stolen) else 0.0
        self.made += 1


def test_the_fastest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "REPEATS", 3)
    call = Clock(monkeypatch, (0.03, 0), (0.01, 0), (0.02, 0))
    assert fastest(call) == pytest.approx(0.01)
    assert call.made == 4  # once before, so that what the first call sets up is not timed


def test_calls_that_lost_their_core_do_not_count_as_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first six none is as fast as an undisturbed one."""
    call = Clock(monkeypatch, *[(0.009, 1)] * 6, *[(0.005, 0)] * 5)
    assert fastest(call) == pytest.approx(0.005)


def test_calls_from_which_a_host_took_time_do_not_count_as_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their time of the processor is less than they took, or nothing."""
    call = Clock(monkeypatch, (0.0, 0), (0.002, 0), (0.005, 0), stolen=(0.005, 0.003))
    assert fastest(call) == pytest.approx(0.005)
    assert call.made == 1 + 2 + room.REPEATS


def test_where_no_call_kept_its_core_the_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Clock(monkeypatch, (0.0, 1), (0.2, 1), (0.2, 1), (0.2, 1))
    assert fastest(call) == pytest.approx(0.2)


def test_by_the_wall_the_fastest_counts_though_it_lost_its_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No call seems faster than it is; on a busy machine most seem slower."""
    call = Clock(monkeypatch, (0.3, 1), (0.1, 1), (0.2, 1))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert fastest(call) == pytest.approx(0.1)


def test_patience_ends_where_every_call_loses_its_core(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Clock(monkeypatch, (0.2, 1))
    assert fastest(call) == pytest.approx(0.2)
    assert call.made == 4  # after 0.2, 0.4 and 0.6 seconds, and once before
    quick = Clock(monkeypatch, (1e-6, 1))
    fastest(quick)
    assert quick.made == room.MOST_CALLS + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_amounts_are_flops_and_bytes(small: None, dtype: torch.dtype) -> None:
    """2 m k n FLOPs of a product, of each of 16 in a batch; of a sum over rows what it reads."""
    calls = {name: (amount, call) for name, amount, call in room._calls(dtype)}
    amounts = {name: amount for name, (amount, _) in calls.items()}
    assert amounts["map 2x8x4"] == amounts["gradient 4x2x8"] == 2 * 2 * 8 * 4
    assert amounts["batch 2x4x2"] == 16 * 2 * 2 * 4 * 2
    assert (amounts["pointwise 512"], amounts["to 512"], amounts["sum 512"]) == (
        2 * dtype.itemsize * 512,
        (2 + 4) * 512,
        dtype.itemsize * 512,
    )
    shapes = {
        name: tuple(call().shape)
        for name, (_, call) in calls.items()
        if " 2x" in name or " 4x" in name
    }
    assert shapes == {"map 2x8x4": (2, 4), "gradient 4x2x8": (4, 8), "batch 2x4x2": (16, 2, 2)}
    assert calls["map 2x8x4"][1]().dtype == dtype


def test_rates_are_kept(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturbance, "preemptions", lambda: 0)  # tests run beside one another
    now = measure_rates("fp32")
    assert now.age == ""
    assert {name.split()[0] for name in now.values} == {"map", "gradient", "batch", *room.MOVING}
    assert all(value > 0 for value in now.values.values())
    monkeypatch.setattr(room, "_measure", lambda dtype: pytest.fail("measured again"))
    later = measure_rates("fp32")
    assert later.values == now.values
    assert later.age.startswith(", as measured on ")
