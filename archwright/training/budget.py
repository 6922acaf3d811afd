"""Budgets in time: the progress of a run is the share of its time for training that has passed."""

import time
from collections.abc import Callable, Iterable, Mapping

from archwright.runs.records import Record

READING = 0.07
"""Share of the budget for the last evaluation, with a reserve; longer held-out texts are read in part."""
LEAST_READ = 20_000
"""Least number of held-out tokens in the last evaluation."""
TRAINING = 0.5
"""Least share of the budget for training."""


class Clock:
    """Progress of a run with a budget in time.

    Args:
        seconds: Time for training.
        progress: Progress of the checkpoint that a resumed run starts from.
        recorded: Progress by step, of steps that are trained again.
    """

    def __init__(
        self,
        seconds: float,
        progress: float,
        recorded: Mapping[int, float],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._seconds, self._recorded, self._clock = seconds, recorded, clock
        self._set(progress)

    def progress(self, step: int) -> float:
        """Return the progress after a step; 1 ends the run.

        A step that is trained again has its recorded progress, and so the same learning rate. The last step is the one
        that ends nearest to the end of the time, early or late.
        """
        if step in self._recorded:
            self._set(self._recorded[step])
            return self._recorded[step]
        progress = round((self._clock() - self._started) / self._seconds, 9)
        half_step = progress / step / 2
        return 1.0 if progress + half_step >= 1 else progress

    def _set(self, progress: float) -> None:
        self._started = self._clock() - progress * self._seconds


def recorded_progress(records: Iterable[Record]) -> dict[int, float]:
    """Return the progress after each recorded step of a run with a budget in time."""
    return {r["step"]: r["progress"] for r in records if r["kind"] == "train" and "progress" in r}
