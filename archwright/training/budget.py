"""A budget in time: the number of steps is settled again and again while a run trains, so that it ends in time.

How long steps will take is not known beforehand: other programs come and go. So every fiftieth of the budget, the
number of steps is settled again from the steps of the last tenth. Each plan is recorded before it counts, and one that
was recorded is never made again: a run that was cut off goes on with the plans that it had.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter

from archwright.runs.records import Record
from archwright.spec.budget import Budget
from archwright.spec.run_spec import RunSpec

EVERY = 0.02
"""Share of the budget between two plans: what a sudden change of speed can cost is a part of it."""
LOOK_BACK = 5
"""Plans back to which steps tell how long the next ones take."""
REHEARSAL = 0.1
"""Share of the budget after which the end is rehearsed: by then steps take what they take."""
LANDING = 0.02
"""Share of the budget that a run still trains, if it was to, when its time turns out to be over."""
READING = 0.1
"""Share of the budget that the last evaluations may take; of a text that takes longer they read a fair sample."""
LEAST_READ = 20_000
"""Tokens that they read in any case, if the text has as many."""
TRAINING = 0.5
"""Least share of the budget that is trained, however long the start and the end take."""
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
    """Estimates how long the end of a run takes, from how long a little of all that is done there has taken.

    Each is kept as a number of steps, as whatever slows steps down slows the end down as well.

    Args:
        final_tokens: tokens that the evaluations of the end read.
        rehearse: does a little of what comes after the last step, and returns about how many seconds all of it takes.
    """

    def __init__(self, final_tokens: float, rehearse: Callable[[], Mapping[str, float]]) -> None:
        self.final_tokens, self.rehearse = final_tokens, rehearse
        self.step_seconds = 0.0
        """Wall time of a step, all things included, as it was last; 0 before any plan."""
        self.rehearsed = False
        self._steps: dict[str, float] = {}

    def rehearse_once(self) -> None:
        """Measure the end, unless this process has done so."""
        if not self.rehearsed:
            self.rehearsed = True
            for work, seconds in self.rehearse().items():
                self._note(work, seconds)

    def read_less(self, share: float) -> None:
        """Take note that the last evaluations read only a share of what they were to."""
        self.final_tokens *= share

    def evaluated(self, seconds: float, num_tokens: int) -> None:
        """Take note of an evaluation during training."""
        self._note("evaluation", seconds * self.final_tokens / max(1, num_tokens))

    def saved(self, seconds: float) -> None:
        """Take note of a checkpoint: the end writes one and, as often, the weights alone."""
        self._note("saving", 2 * seconds)

    @property
    def wants_checkpoint(self) -> bool:
        """Whether nothing tells yet how long saving takes."""
        return self.rehearsed and "saving" not in self._steps

    def seconds(self, step_seconds: float) -> float:
        """Return the seconds from the last step to the prompt, as far as they are known."""
        return sum(self._steps.values()) * step_seconds

    def _note(self, work: str, seconds: float) -> None:
        if self.step_seconds:
            self._steps[work] = seconds / self.step_seconds


def final_tokens(run: RunSpec, held_out: int) -> float:
    """Return how many tokens the last evaluations read of so many held-out ones, each time that one is read."""
    stride, context_length = run.evaluate.stride, run.model.context_length
    overlap = 1.0 if stride == "auto" else context_length / stride
    tokens = min(run.evaluate.final_max_tokens, held_out)
    # In the measure of an evaluation during training, which overlaps as the last one does; those at lengths do not.
    return tokens * (1 + len(run.evaluate.lengths) / overlap)


class Deadline:
    """Settles a run's number of steps so that its last step, and what comes after, end with its budget.

    Args:
        budget: time.
        spent: what was spent of it when the first step began.
        trained: wall time since then, at the step from which this process goes on.
        recorded: the plans that are recorded, also those of later steps.
    """

    def __init__(
        self,
        budget: Budget,
        spent: float,
        trained: float,
        step: int,
        closing: Closing,
        recorded: Sequence[Record],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.budget, self.seconds, self.spent, self.closing = budget, budget.amount, spent, closing
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

    def replan(self, step: int, planned: int) -> tuple[int, str]:
        """Return the number of steps that time is left for, at least `step`, and how that was found.

        A run that was `planned` to go on is not cut off at once: its learning rate needs some steps to its end.
        """
        trained = self.trained
        self._seen.append((trained, step))
        before, first = self._seen[0]
        closing = self.closing
        closing.step_seconds = per_step = (trained - before) / (step - first)
        if trained >= REHEARSAL * self.seconds:
            closing.rehearse_once()
            rehearsal = self.trained - trained  # which is no part of the steps around it
            trained += rehearsal
            self._seen = deque(((t + rehearsal, s) for t, s in self._seen), LOOK_BACK + 1)
        # The machine may be another at the end: what steps take now counts half, what they took on the whole, half.
        ending = closing.seconds((per_step + trained / step) / 2)
        end = max(TRAINING * self.seconds, self.seconds - self.spent - ending)
        landing = min(planned - step, round(LANDING * self.seconds / per_step))
        left = max(0, landing, math.floor((end - trained) / per_step + 0.5))
        reason = (
            f"budget of {self.budget}, planned again at step {step} with "
            f"{1e3 * per_step:.1f} ms a step and {ending:.1f} s for the end"
        )
        return step + left, reason


def recorded_plans(records: Iterable[Record]) -> list[Record]:
    """Return the plans among a run's records, by their steps."""
    return sorted((r for r in records if r["kind"] == "plan"), key=itemgetter("step"))
