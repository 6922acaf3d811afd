"""Schedules against closed formulas, their ends, and continuity."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archwright.optim.schedules import SCHEDULES, learning_rate, warmup_steps
from archwright.spec.schedules import WSD, Constant, Cosine, InverseSqrt, Linear, Schedule

ALL = [
    Cosine(warmup=10),
    Cosine(warmup=10, final_lr_fraction=0.0),
    WSD(warmup=10),
    WSD(warmup=10, decay_fraction=0.5, final_lr_fraction=0.2),
    Linear(warmup=10),
    Linear(warmup=10, final_lr_fraction=0.3),
    Constant(warmup=10),
    InverseSqrt(warmup=10),
]


def test_every_schedule_of_the_spec_is_here():
    assert set(SCHEDULES) == set(Schedule.kinds.values())


@pytest.mark.parametrize("schedule", ALL, ids=repr)
def test_warmup_is_a_line_to_the_peak(schedule):
    shares = [learning_rate(schedule, step, 100) for step in range(11)]
    assert shares == pytest.approx([(step + 1) / 11 for step in range(11)])


@pytest.mark.parametrize(
    ("schedule", "step", "share"),
    [
        (Cosine(warmup=0, final_lr_fraction=0.0), 50, 0.5),
        (Cosine(warmup=0, final_lr_fraction=0.0), 25, (2 + math.sqrt(2)) / 4),
        (Cosine(warmup=20, final_lr_fraction=0.1), 60, 0.55),
        (Cosine(warmup=20, final_lr_fraction=0.1), 100, 0.1),
        (WSD(warmup=20, decay_fraction=0.2), 79, 1.0),
        (WSD(warmup=20, decay_fraction=0.2), 80, 1.0),
        (WSD(warmup=20, decay_fraction=0.2), 95, 0.25),
        (WSD(warmup=20, decay_fraction=0.2, final_lr_fraction=0.4), 95, 0.55),
        (WSD(warmup=20, decay_fraction=0.2), 100, 0.0),
        (WSD(warmup=90, decay_fraction=0.5), 89, 90 / 91),
        (WSD(warmup=90, decay_fraction=0.5), 95, 0.5),
        (Linear(warmup=20), 60, 0.5),
        (Linear(warmup=20, final_lr_fraction=0.5), 60, 0.75),
        (Linear(warmup=20), 100, 0.0),
        (Constant(warmup=20), 99, 1.0),
        (InverseSqrt(warmup=0), 3, 0.5),
        (InverseSqrt(warmup=24), 99, 0.5),
    ],
    ids=repr,
)
def test_closed_formulas(schedule, step, share):
    assert learning_rate(schedule, step, 100) == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize("warmup", [1, 400, 4000])
def test_inverse_sqrt_is_the_published_one(warmup):
    """d^-0.5 min(step^-0.5, step warmup^-1.5), over its own peak, steps counted from 1."""

    def published(step: int) -> float:
        return min(step**-0.5, step * (warmup + 1) ** -1.5)

    for step in (0, 1, 10, 399, 400, 401, 5000, 100_000):
        expected = published(step + 1) / published(warmup + 1)
        found = learning_rate(InverseSqrt(warmup=warmup), step, 1000)
        assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("schedule", ALL, ids=repr)
def test_no_step_jumps(schedule):
    shares = [learning_rate(schedule, step, 1000) for step in range(1001)]
    jumps = [abs(a - b) for a, b in itertools.pairwise(shares)]
    assert max(jumps) <= 1 / 11 + 1e-12  # the warm-up is the steepest part
    assert max(jumps[10:]) < 0.05


@pytest.mark.parametrize("schedule", ALL, ids=repr)
def test_steps_after_the_end_stay(schedule):
    if not isinstance(schedule, InverseSqrt):
        end = learning_rate(schedule, 100, 100)
        assert end == pytest.approx(getattr(schedule, "final_lr_fraction", 1.0))
        assert learning_rate(schedule, 5000, 100) == pytest.approx(end)


@given(
    schedule=st.sampled_from([Cosine, WSD, Linear, Constant, InverseSqrt]),
    warmup=st.integers(0, 300) | st.just("auto"),
    step=st.integers(0, 500),
    num_steps=st.integers(1, 400),
)
def test_always_a_share(schedule, warmup, step, num_steps):
    assert 0.0 <= learning_rate(schedule(warmup=warmup), step, num_steps) <= 1.0


def test_warmup_left_to_the_machine():
    assert warmup_steps(Cosine(), 400) == 20
    assert warmup_steps(Cosine(), 1_000_000) == 200
    assert warmup_steps(Cosine(warmup=7), 400) == 7
    assert warmup_steps(Cosine(), 5) == 0
