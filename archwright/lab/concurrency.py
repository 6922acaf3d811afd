"""How the runs of a study share a CPU: each alone on a core, or several as one on each; whichever is faster."""

import math
from collections.abc import Mapping
from typing import Protocol

from archwright.ensemble.session import reason_alone
from archwright.lab.plan import Arm, workers_each
from archwright.lab.plan_file import Cost
from archwright.model.build import build
from archwright.spec.errors import UserError
from archwright.spec.study_spec import StudySpec

MOST = 8
"""Runs of a stack; more gain little, and the last of a study would wait for one another."""

WORTHWHILE = 1.05
"""Times the tokens per second of runs alone, from which stacks are taken."""


class Time(Protocol):
    """Times runs in processes, as many at once as there are workers; of a stack, each run's share."""

    def __call__(
        self, timed: Mapping[str, Arm], workers: int, stack: int = 1
    ) -> dict[str, Cost]: ...


class Sharing:
    """Decides whether a study stacks its runs. All its variants do, or none, so that rounding is the same for
    all that is compared."""

    def __init__(self, study: StudySpec, time: Time) -> None:
        self.study, self.time = study, time

    def decide(self, found: Mapping[str, Arm], workers: int) -> tuple[dict[str, Cost], int, str]:
        """Return what runs cost, how many are stacked at most, and why.

        Raises:
            UserError: stacks were asked for, and a variant cannot be stacked.
        """
        asked = self.study.parallelism
        if asked in ("none", "processes"):
            return self.time(found, workers), 1, f"parallelism={asked} was asked for"
        alone = self._obstacle(found)
        sizes = [] if alone else self.sizes(len(found), workers)
        if asked == "ensemble":
            if not sizes:
                why = alone or "there are too few runs for a stack on each core"
                raise UserError(
                    f"parallelism: no ensemble can be made: {why}; expected processes or auto"
                )
            costs = self.time(found, workers, self.usual(len(found), workers, max(sizes)))
            return costs, max(sizes), "stacks were asked for"
        costs = self.time(found, workers)
        if not sizes:
            return costs, 1, alone or "there are too few runs for a stack on each core"
        return self._fastest(found, workers, costs, sizes)

    def sizes(self, variants: int, workers: int) -> list[int]:
        """Return how many runs a stack may have, so that no worker has nothing to do: seeds where learning rates
        are fixed or placed by others, else whole sweeps."""
        study = self.study
        sweeps = study.tune_lr and study.procedure == "sweep"
        unit, seeds = (study.lr_grid_size, study.seeds - 1) if sweeps else (1, study.seeds)
        fitting = [n for n in (1, 2, 4, 8) if n <= seeds and -(-seeds // n) * variants >= workers]
        return [n * unit for n in fitting if 1 < n * unit <= MOST]

    def usual(self, arms: int, workers: int, most: int) -> int:
        """Return how many runs most stacks have, by which the time of a study is estimated: where it is looked at on
        the way, the rates of one sweep, dealt out to the workers that a variant has for itself."""
        study = self.study
        if not (study.tune_lr and study.procedure == "confirm" and study.early_stopping):
            return most
        return min(most, math.ceil(study.lr_grid_size / workers_each(study, workers, arms)))

    def _obstacle(self, found: Mapping[str, Arm]) -> str:
        for name, arm in found.items():
            size = arm.material.tokenizer.vocab_size
            model = build(arm.run.model, device="meta", vocab_size=size)
            if why := reason_alone(arm.run, model):
                return f"{name}: {why}"
        return ""

    def _fastest(
        self, found: Mapping[str, Arm], workers: int, costs: dict[str, Cost], sizes: list[int]
    ) -> tuple[dict[str, Cost], int, str]:
        """Time the baseline in stacks on all cores, and take the best size if that is worthwhile."""
        baseline, arm = next(iter(found.items()))
        crowd = {str(i): arm for i in range(workers)}
        tried = {
            size: max(c.step for c in self.time(crowd, workers, size).values()) for size in sizes
        }
        best = min(tried, key=lambda size: tried[size])
        gain = costs[baseline].step / tried[best]
        reason = (
            f"{best} runs as one train {gain:.2f} times the tokens of as many alone on a thread"
        )
        if gain < WORTHWHILE:
            return costs, 1, reason
        usual = self.usual(len(found), workers, best)
        return (self.time(found, workers, usual) if usual > 1 else costs), best, reason
