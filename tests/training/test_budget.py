"""A budget in time is kept on a simulated clock, whatever else the machine does."""

import random
from itertools import pairwise

import pytest

from archwright.optim import learning_rate
from archwright.spec.schedules import WSD, Cosine, InverseSqrt, Linear, Schedule
from archwright.training.budget import READING, Clock, recorded_progress

STEP = 0.04
START = 5.0
EVALUATION = 0.5
READ_ALL = 8.0
"""Seconds of the last evaluation, if it reads all of the text, on a quiet machine."""
FOR_THE_END = 1.5
"""Seconds of saving, sample and page on a quiet machine."""
SLOWER = 1.8
"""Times that everything takes next to a busy neighbour."""


class Machine:
    """A simulated clock; `is_busy` returns whether a neighbour works at a time."""

    def __init__(self, is_busy: str, budget: float, seed: int) -> None:
        self.dice, self.now = random.Random(f"{is_busy} {seed}"), 0.0
        coins = [self.dice.random() < 0.5 for _ in range(100)]
        self.is_busy = {
            "never": lambda: False,
            "always": lambda: True,
            "late": lambda: self.now > budget / 2,
            "early": lambda: self.now < budget / 2,
            "now and then": lambda: coins[int(self.now / 20)],
        }[is_busy]

    def take(self, seconds: float) -> float:
        """Let pass what takes so many seconds on a quiet machine; return the seconds that passed."""
        began = self.now
        for _ in range(max(1, round(seconds / STEP))):
            self.now += min(seconds, STEP) * (SLOWER if self.is_busy() else 1.0)
        return self.now - began


def simulated(budget: float, machine: Machine) -> tuple[float, list[float]]:
    """Return the seconds to the prompt of a run, and its progress after each step."""
    machine.take(START)
    # A tenth of the end is measured, within a tenth.
    reading, rest = (
        10 * machine.take(work / 10) * machine.dice.uniform(0.9, 1.1)
        for work in (READ_ALL, FOR_THE_END)
    )
    share = min(1.0, READING * budget / reading)
    training = budget - machine.now - share * reading - rest
    clock = Clock(training, 0.0, {}, clock=lambda: machine.now)
    done = [0.0]
    every = round(budget / STEP / 10)
    while done[-1] < 1:
        machine.take(STEP * machine.dice.uniform(0.8, 1.3))
        done.append(clock.progress(len(done)))
        if done[-1] < 1 and len(done) % every == 0:
            machine.take(EVALUATION)
    machine.take(share * READ_ALL + FOR_THE_END)
    return machine.now, done


@pytest.mark.parametrize("budget", [60.0, 180.0])
@pytest.mark.parametrize(
    ("is_busy", "within"),
    [("never", 0.05), ("always", 0.05), ("late", 0.1), ("early", 0.1), ("now and then", 0.1)],
)
def test_nine_of_ten_runs_end_with_their_budget(budget: float, is_busy: str, within: float) -> None:
    ends = [simulated(budget, Machine(is_busy, budget, seed))[0] for seed in range(20)]
    kept = [abs(seconds - budget) <= within * budget for seconds in ends]
    assert sum(kept) >= 18, ends


@pytest.mark.parametrize(
    "schedule", [Linear(final_lr_fraction=0.0), Cosine(), WSD(), InverseSqrt()]
)
@pytest.mark.parametrize("seed", range(5))
def test_the_learning_rate_moves_little_by_little_to_its_end(schedule: Schedule, seed: int) -> None:
    _, done = simulated(180.0, Machine("now and then", 180.0, seed))
    num_steps, warmup = len(done) - 1, 100
    schedule = schedule.model_copy(update={"warmup": warmup})
    rates = [
        learning_rate(schedule, step, step / progress if progress else num_steps)
        for step, progress in enumerate(done[:-1])
    ]
    steady = [learning_rate(schedule, step, num_steps) for step in range(num_steps)]
    assert rates[: warmup + 1] == steady[: warmup + 1]
    assert all(b <= a + 1e-3 for a, b in pairwise(rates[warmup:]))
    # An evaluation takes a fortieth of the decay of WSD at most.
    assert max(abs(b - a) for a, b in pairwise(rates)) < 0.05
    assert rates[-1] == pytest.approx(steady[-1], abs=0.01)


def test_progress_is_the_share_of_the_time() -> None:
    now = [5.0]
    clock = Clock(10.0, 0.2, {}, clock=lambda: now[0])
    now[0] = 6.0
    assert clock.progress(10) == pytest.approx(0.3)
    now[0] = 10.0
    assert clock.progress(15) == pytest.approx(0.7)


@pytest.mark.parametrize(("passed", "progress"), [(9.4, 0.94), (9.6, 1.0), (12.0, 1.0)])
def test_the_last_step_ends_nearest_to_the_end(passed: float, progress: float) -> None:
    """Ten steps of a second each: a run ends half a step early at most."""
    now = [0.0]
    clock = Clock(10.0, 0.0, {}, clock=lambda: now[0])
    now[0] = passed
    assert clock.progress(10) == pytest.approx(progress)


def test_recorded_progress_is_repeated_and_time_goes_on_from_there() -> None:
    now = [0.0]
    clock = Clock(10.0, 0.1, {2: 0.3, 3: 0.5}, clock=lambda: now[0])
    now[0] = 8.0
    assert clock.progress(2) == 0.3
    assert clock.progress(3) == 0.5
    now[0] = 9.0
    assert clock.progress(4) == pytest.approx(0.6)


def test_only_steps_of_a_budget_in_time_have_progress() -> None:
    records = [
        {"kind": "event", "step": 0, "name": "started"},
        {"kind": "train", "step": 1, "progress": 0.25},
        {"kind": "train", "step": 2},
        {"kind": "eval", "step": 2, "nats_per_token": 1.0},
    ]
    assert recorded_progress(records) == {1: 0.25}
