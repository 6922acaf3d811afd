"""A budget in time is kept on a simulated clock, whatever else the machine does."""

import random
from itertools import pairwise

import pytest

from archwright.optim import learning_rate
from archwright.spec.budget import Budget
from archwright.spec.run_spec import WSD, Cosine, InverseSqrt, Linear, RunSpec, Schedule
from archwright.training.budget import (
    Closing,
    Deadline,
    Plan,
    final_tokens,
    schedule_steps,
    seconds_of,
)

BASE_STEP = 0.08
HELD_OUT = 300_000
EVAL_TOKENS = 20_000
FORWARD = 2 * BASE_STEP / 2048 / 3
"""Seconds to evaluate a token, each of which is read twice, on a quiet machine."""
REST = 3.0
"""Seconds of sample, baselines and page on a quiet machine."""


class Machine:
    """A clock, and how much slower than alone everything is: another draw every 20 seconds."""

    def __init__(self, seed: int, neighbours: int) -> None:
        self.dice, self.neighbours, self.now = (
            random.Random(f"{seed} {neighbours}"),
            neighbours,
            0.0,
        )
        self.drawn: list[float] = []

    def takes(self, seconds: float) -> None:
        """Let pass what takes so many seconds on a quiet machine."""
        while seconds > 0:
            until = 20 * (int(self.now // 20) + 1)
            share = min(seconds, (until - self.now) / self._slowness)
            self.now = until if share < seconds else self.now + share * self._slowness
            seconds -= share

    @property
    def _slowness(self) -> float:
        while len(self.drawn) <= self.now // 20:
            busy = [self.dice.random() for _ in range(self.neighbours)]
            self.drawn.append(0.5 * 2 ** sum(busy) if self.neighbours else 1.0)
        return self.drawn[int(self.now // 20)]


def rehearse(machine: Machine) -> dict[str, float]:
    """A twentieth of all."""
    start = machine.now
    machine.takes(HELD_OUT * FORWARD / 20)
    between = machine.now
    machine.takes(REST / 20)
    return {"evaluation": 20 * (between - start), "rest": 20 * (machine.now - between)}


def simulated(budget: float, machine: Machine, foretold: float) -> tuple[float, list[Plan]]:
    """Return the seconds to the prompt of a run whose first plan is off by `foretold`, and its plans."""
    run = RunSpec().override(
        f"budget={budget}s", "batch_size=8", "model.context_length=256", "evaluate.stride=128"
    )
    machine.takes(6.0)  # imports, text, measuring
    closing = Closing(final_tokens(run, HELD_OUT), lambda: rehearse(machine))
    deadline = Deadline(run.budget, machine.now, 0.0, 0, closing, [], clock=lambda: machine.now)
    plans = [(0, int(budget / BASE_STEP * foretold))]
    step, saved = 0, machine.now
    every = max(1, plans[0][1] // 10)
    while step < plans[-1][1]:
        machine.takes(BASE_STEP * machine.dice.uniform(0.8, 1.3))
        step += 1
        if deadline.due(step):
            plans.append((step, deadline.replan(step, plans[-1][1])[0]))
        if step < plans[-1][1] and step % every == 0:
            start = machine.now
            machine.takes(EVAL_TOKENS * FORWARD)
            closing.evaluated(machine.now - start, EVAL_TOKENS)
        if step == plans[-1][1] or machine.now - saved >= 60 or closing.wants_checkpoint:
            start = machine.now
            machine.takes(0.2)
            closing.saved(machine.now - start)
            saved = machine.now
    machine.takes(HELD_OUT * FORWARD + 0.1 + REST)
    return machine.now, plans


@pytest.mark.parametrize("neighbours", [0, 1, 2])
@pytest.mark.parametrize("budget", [90.0, 180.0])
@pytest.mark.parametrize("foretold", [0.5, 1.0, 2.0])
def test_nine_of_ten_runs_end_within_a_tenth(
    budget: float, neighbours: int, foretold: float
) -> None:
    ended = [simulated(budget, Machine(i, neighbours), foretold)[0] for i in range(20)]
    kept = [abs(seconds - budget) <= 0.1 * budget for seconds in ended]
    assert sum(kept) >= 18, ended


@pytest.mark.parametrize(
    "schedule", [Linear(final_lr_fraction=0.0), Cosine(), WSD(), InverseSqrt()]
)
@pytest.mark.parametrize("seed", range(10))
def test_the_learning_rate_moves_little_by_little_to_its_end(schedule: Schedule, seed: int) -> None:
    _, plans = simulated(180.0, Machine(seed, 2), 0.6)
    last, warmup = plans[-1][1], plans[0][1] // 20
    schedule = schedule.model_copy(update={"warmup": warmup})

    def rate(step: int) -> float:
        known = [plan for plan in plans if plan[0] <= step]
        return learning_rate(schedule, step, schedule_steps(known, step, warmup))

    rates = [rate(step) for step in range(last)]
    assert rates[warmup] == 1.0
    steepest = max(abs(b - a) for a, b in pairwise(rates))
    # A steady run of as many steps is steepest in the warm-up, or in the decay at its end.
    assert steepest <= max(1 / (warmup + 1), 25 / last) + 1e-9
    assert all(b <= a + 1e-9 for a, b in pairwise(rates[warmup:]))
    steady = [learning_rate(schedule, step, last) for step in range(last)]
    assert rates[-1] == pytest.approx(steady[-1], abs=0.02)


def test_one_plan_is_the_schedule_as_it_is() -> None:
    for step in (0, 3, 10, 99):
        assert schedule_steps([(0, 100)], step, 5) == 100


def test_a_plan_takes_progress_on_from_where_it_is() -> None:
    """Half of the way is done after 55 of 105 steps; the rest is then done in 25, and p = 3/4 after 12.5."""
    plans = [(0, 105), (55, 80)]
    assert schedule_steps(plans, 55, 5) == pytest.approx(105)
    progress = (67 - 5) / (schedule_steps(plans, 67, 5) - 5)
    assert progress == pytest.approx(0.5 + 0.5 * 12 / 25)
    assert schedule_steps(plans, 80, 5) == pytest.approx(80)


def test_plans_in_the_warm_up_move_only_the_end() -> None:
    assert schedule_steps([(0, 100), (3, 40)], 5, 5) == 40
    assert schedule_steps([(0, 100), (3, 40)], 20, 5) == pytest.approx(40)


NO_END = Closing(0.0, dict)
RECORDED = [
    {"kind": "plan", "step": 5, "num_steps": 40, "wall_seconds": 1.0},
    {"kind": "plan", "step": 9, "num_steps": 30, "wall_seconds": 2.0},
]


def test_what_is_recorded_is_not_settled_again() -> None:
    now = [0.0]
    deadline = Deadline(Budget("10s"), 1.0, 0.0, 3, NO_END, RECORDED, clock=lambda: now[0])
    now[0] = 8.0
    assert [deadline.resolved(step) for step in (5, 6, 9)] == [40, None, 30]
    assert not deadline.due(9)
    now[0] = 9.0
    assert deadline.due(10)


def test_half_of_the_budget_is_trained_however_long_the_start_took() -> None:
    now = [0.0]
    deadline = Deadline(Budget("10s"), 60.0, 0.0, 0, NO_END, [], clock=lambda: now[0])
    now[0] = 1.0
    assert deadline.replan(10, 100)[0] == 50
    now[0] = 7.0
    assert deadline.replan(50, 50)[0] == 50


def test_the_end_slows_down_with_the_steps() -> None:
    """Two steps of 1 s, and estimated by the middle of 3 s now and 25 / 15 s on the whole."""
    now = [0.0]
    closing = Closing(0.0, lambda: {"sample": 2.0})
    deadline = Deadline(Budget("100s"), 0.0, 0.0, 0, closing, [], clock=lambda: now[0])
    for step in range(1, 11):
        now[0] += 1
        deadline.replan(step, 100)
    assert closing.seconds(1.0) == pytest.approx(2)
    for step in range(11, 16):
        now[0] += 3
        num_steps, reason = deadline.replan(step, 100)
    assert num_steps == 15 + (100 - 4.7 - 25) // 3
    assert reason.endswith("3000.0 ms a step and 4.7 s for the end")


def test_the_rehearsal_is_no_part_of_a_step() -> None:
    now = [0.0]

    def slowly() -> dict[str, float]:
        now[0] += 7.0
        return {"sample": 4.0}

    closing = Closing(1000.0, slowly)
    deadline = Deadline(Budget("100s"), 0.0, 0.0, 0, closing, [], clock=lambda: now[0])
    now[0] = 10.0
    assert deadline.replan(10, 100)[0] == 10 + round(100 - 17 - 4 * (1 + 1.7) / 2)
    now[0] += 5.0
    assert deadline.replan(15, 100)[0] == 15 + round(100 - 22 - 4 * (1 + 22 / 15) / 2)
    closing.evaluated(0.5, 100)
    closing.saved(0.25)
    assert closing.seconds(1.0) == pytest.approx(4 + 5 + 0.5)


def test_saving_is_measured_early() -> None:
    now = [0.0]
    closing = Closing(0.0, lambda: {"sample": 1.0})
    deadline = Deadline(Budget("100s"), 0.0, 0.0, 0, closing, [], clock=lambda: now[0])
    now[0] = 9.0
    deadline.replan(9, 100)
    assert not closing.wants_checkpoint
    now[0] = 10.0
    deadline.replan(10, 100)
    assert closing.wants_checkpoint
    closing.saved(0.1)
    assert not closing.wants_checkpoint


def test_a_run_of_which_steps_are_asked_has_no_deadline() -> None:
    assert seconds_of(RunSpec(budget="90s")) == 90
    assert seconds_of(RunSpec(budget="90steps")) is None
    assert seconds_of(RunSpec(budget="90s").override("machine.num_steps=7")) is None


def test_a_run_whose_time_is_over_brings_its_learning_rate_to_its_end() -> None:
    """A fiftieth of the budget is trained still, but not more than was planned before."""
    now = [0.0]
    deadline = Deadline(Budget("100s"), 0.0, 0.0, 0, NO_END, [], clock=lambda: now[0])
    now[0] = 100.0
    assert deadline.replan(200, 300)[0] == 204
    now[0] += 1.5
    assert deadline.replan(203, 204)[0] == 204
