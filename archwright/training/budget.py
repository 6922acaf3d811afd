"""A budget in time: the number of steps is settled again and again while a run trains, so that it ends in time.

How long steps will take is not known beforehand: other programs come and go. So every fiftieth of the budget, the
number of steps is settled again from the steps of the last tenth. Each plan is recorded before it counts, and one that
was recorded is never made again: a run that was cut off goes on with the plans that it had.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from archwright.runs.records import Record
from archwright.spec.run_spec import RunSpec

EVERY = 0.02
"""Share of the budget between two plans: what a sudden change of speed can cost is a part of it."""
LOOK_BACK = 5
"""Plans back to which steps tell how long the next ones take."""
TRAINING = 0.5
"""Least share of the budget that is trained, however long the start and the end take."""
CLOSING_SECONDS = 3.0
"""Time for what the end takes beside evaluations and saving: baselines, a sample, the page, leaving the process."""

Plan = tuple[int, int]
"""The step at which a number of steps was settled, and that number."""


def seconds_of(run: RunSpec) -> float | None:
    """Return the wall time that a run asks for, or None where its number of steps follows from something else."""
    return run.budget.seconds if run.machine.num_steps == "auto" else None


def schedule_steps(plans: Sequence[Plan], step: int, warmup: int) -> int | float:
    """Return the number of steps for which a schedule is to be read at `step`.

    The progress p of a schedule, 0 at the end of the warm-up and 1 at the end of the run, grows linearly under each
    plan, from where the one before has brought it, to be 1 when the planned steps are done. So it is continuous
    whatever is planned. Returned is the length n of a schedule that is as far: (step - warmup) / (n - warmup) = p.
    """
    if len(plans) == 1:
        return plans[0][1]
    progress = 0.0
    ends = [first for first, _ in plans[1:]] + [step]
    for (first, num_steps), end in zip(plans, ends, strict=True):
        start = max(first, warmup)
        share = (max(end, warmup) - start) / max(1, num_steps - start)
        progress += (1 - progress) * min(1.0, share)
    if progress == 0:
        return plans[-1][1]
    return warmup + (step - warmup) / progress


class Closing:
    """Foretells how long the end of a run takes, from the evaluations and checkpoints during training."""

    def __init__(self, run: RunSpec, held_out: int) -> None:
        self.run, self.held_out = run, held_out
        self.saving = 0.0
        """Seconds of a checkpoint."""
        self._per_token: float | None = None

    def evaluated(self, seconds: float, num_tokens: int) -> None:
        """Take note of an evaluation."""
        self._per_token = seconds / max(1, num_tokens)

    def seconds(self, step_seconds: float) -> float:
        """Return the seconds from the last step to the prompt.

        Before anything was evaluated, a forward pass counts a third of a step.
        """
        run, overlap = self.run, self._overlap
        forward = step_seconds / run.tokens_per_step / 3
        per_token = overlap * forward if self._per_token is None else self._per_token
        tokens = min(run.evaluate.final_max_tokens, self.held_out)
        evaluations = 1 + len(run.evaluate.lengths) / overlap
        return evaluations * tokens * per_token + 2 * self.saving + CLOSING_SECONDS

    @property
    def _overlap(self) -> float:
        """How often an evaluation reads each token."""
        stride = self.run.evaluate.stride
        return 1.0 if stride == "auto" else self.run.model.context_length / stride


class Deadline:
    """Settles a run's number of steps so that its last step, and what comes after, end with its budget.

    Args:
        seconds: the budget.
        spent: what was spent of it when the first step began.
        trained: wall time since then, at the step from which this process goes on.
        recorded: the plans that are recorded, also those of later steps.
    """

    def __init__(
        self,
        seconds: float,
        spent: float,
        trained: float,
        step: int,
        closing: Closing,
        recorded: Sequence[Record],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.seconds, self.spent, self.closing = seconds, spent, closing
        self._recorded = {plan["step"]: plan["num_steps"] for plan in recorded}
        self._last = max(self._recorded, default=0)
        self._clock, self._first = clock, clock() - trained
        done = [(plan["wall_seconds"], plan["step"]) for plan in recorded if plan["step"] <= step]
        self._seen = deque([(0.0, 0), *done], LOOK_BACK + 1)

    @property
    def trained(self) -> float:
        """Wall time since the first step began, of all processes that trained the run, all things included."""
        return self._clock() - self._first

    def resolved(self, step: int) -> int | None:
        """Return the number of steps that was settled at `step` when it was trained before."""
        num_steps = self._recorded.get(step)
        if num_steps is not None:
            self._seen.append((self.trained, step))
        return num_steps

    def due(self, step: int) -> bool:
        """Tell whether the number of steps is to be settled after `step` steps."""
        return step > self._last and self.trained - self._seen[-1][0] >= EVERY * self.seconds

    def replan(self, step: int) -> tuple[int, str]:
        """Return the number of steps that time is left for, at least `step`, and how that was found."""
        trained = self.trained
        self._seen.append((trained, step))
        before, first = self._seen[0]
        per_step = (trained - before) / (step - first)
        closing = self.closing.seconds(per_step)
        end = max(TRAINING * self.seconds, self.seconds - self.spent - closing)
        left = math.floor(max(0.0, end - trained) / per_step + 0.5)
        reason = (
            f"what a budget of {self.closing.run.budget} pays for, settled again at step {step} with "
            f"{1e3 * per_step:.1f} ms a step and {closing:.1f} s for the end"
        )
        return step + left, reason


def recorded_plans(records: Iterable[Record]) -> list[Record]:
    """Return the plans among a run's records, by their steps."""
    return sorted((r for r in records if r["kind"] == "plan"), key=itemgetter("step"))
