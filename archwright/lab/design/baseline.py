"""Tuning batch and weight decay of a baseline, once, for all variants: which runs are wanted next, and what was found.
It knows losses and nothing else."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import Field

from archwright.lab.procedure.sweep import Losses, pooled, pooled_sweep, tuned, vertex
from archwright.spec.choice import Spec

Axis = Literal["batch", "decay"]
"""What is tuned; the batch comes first."""

RATIOS: Mapping[Axis, int] = {"batch": 2, "decay": 3}
"""Factor between neighbouring values."""

FURTHEST = 3
"""Factors away from what was given, at most."""


class Setting(NamedTuple):
    """A batch size and a weight decay, as powers of their ratios times what was given."""

    batch: int = 0
    decay: int = 0

    def beside(self, axis: Axis) -> list["Setting"]:
        """Return the neighbours along an axis, the lower first."""
        at = self._asdict()[axis]
        return [
            self._replace(**{axis: at + side}) for side in (-1, 1) if abs(at + side) <= FURTHEST
        ]


class Valley(NamedTuple):
    """What a setting reaches at a learning rate of its own."""

    loss: float
    k: float
    """The rate's power."""


@dataclass(frozen=True)
class Search:
    """Where the tuning of a baseline stands."""

    wanted: Sequence[tuple[Setting, int, float]]
    """Runs still missing, as (setting, seed, k). None: the search is complete."""
    tried: Mapping[Setting, Valley]
    """What was given comes first."""
    chosen: Setting
    """The best that is known so far."""


def search(
    losses: Mapping[Setting, Losses],
    axes: Sequence[Axis],
    seeds: Sequence[int],
    *,
    grid: int = 3,
    gain: float = 0.005,
    plateau: float = math.inf,
    possible: Callable[[Setting], bool] = lambda setting: True,
) -> Search:
    """Return the best setting, and what must run before more can be said.

    One axis after another: both neighbours are tried, and while one of them is better by at least a share
    `gain` of the loss, the better one stands and its neighbours are tried. Each setting sweeps learning rates of
    its own (`pooled_sweep`) with the same seeds, and counts by the vertex of its pooled losses. What is found
    depends on the losses alone.

    Args:
        losses: of each setting, those of its runs, NaN where one failed.
        axes: those that are tuned.
        gain: what is less is no reason to leave what was given.
        plateau: loss above which nothing was learnt.
        possible: whether a setting can be trained.
    """
    tried: dict[Setting, Valley] = {}
    chosen = Setting()

    def look(setting: Setting) -> list[tuple[Setting, int, float]]:
        if setting in tried:
            return []
        known = losses.get(setting, {})
        sweep = pooled_sweep(known, seeds, grid, plateau=plateau)
        if sweep.wanted:
            return [(setting, seed, k) for seed, k in sweep.wanted]
        found = Valley(math.inf, 0.0)  # all its runs failed
        if sweep.seeds:
            rates = [math.exp(k) for k in sweep.window]
            lowest = tuned(pooled(known, sweep.seeds, sweep.window), rates)
            found = Valley(lowest.loss, vertex(known, sweep))
        tried[setting] = found
        return []

    wanted = look(chosen)
    for axis in axes if not wanted else ():
        while True:
            around = [setting for setting in chosen.beside(axis) if possible(setting)]
            if wanted := [run for setting in around for run in look(setting)]:
                return Search(wanted, tried, chosen)
            best = min(around, key=lambda setting: tried[setting].loss, default=chosen)
            if tried[best].loss >= tried[chosen].loss:  # also where all runs of both failed
                break
            if tried[best].loss > (1 - gain) * tried[chosen].loss:
                break
            chosen = best
    return Search(wanted, tried, chosen)


class Trial(Spec):
    """A batch size and a weight decay that were tried, at the learning rate that was best for them."""

    batch_size: int = Field(ge=1)
    weight_decay: float | None
    """None: the optimizer has none."""
    lr: float
    loss: float | None
    """At the lowest point of the pooled losses, in the study's unit; None: its runs failed."""


class Tuning(Spec):
    """What is known of the batch and weight decay of a baseline."""

    axes: tuple[Axis, ...]
    """Those that are tuned; others were given."""
    tokens: int = Field(ge=1)
    """Tokens that each run was trained on, about."""
    seeds: tuple[int, ...]
    trials: tuple[Trial, ...] = ()
    """What was given comes first. None: still to be tuned."""
    chosen: int = Field(0, ge=0)
    """The number of the trial that stands."""
    runs: int = Field(0, ge=0)
    seconds: float = Field(0.0, ge=0)
    """Wall time that the runs took which are not also those of the comparison."""
    cost: float = Field(1.0, gt=0)
    """Wall time of a run of what stands, as a share of that of what was given."""
    cut_short: bool = False
    """Whether time ran out before the neighbours of what stands were known."""
    earlier: bool = False
    """Whether an earlier study found it."""

    @property
    def is_done(self) -> bool:
        """Whether the search has ended."""
        return bool(self.trials)

    @property
    def found(self) -> Trial:
        """What stands."""
        return self.trials[self.chosen]


def expected_runs(tuning: Tuning | None, grid: int) -> float:
    """Return the approximate number of runs that a search still takes.

    Each axis tries two neighbours and moves once in half of all studies; the sweeps of the given values do not count.
    """
    if tuning is None or tuning.is_done:
        return 0.0
    return 2.5 * len(tuning.axes) * len(tuning.seeds) * (grid + 0.5)
