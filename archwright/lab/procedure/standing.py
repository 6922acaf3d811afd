"""State of a study's procedure, computed from losses: missing runs, compared runs and decisions."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from archwright.lab.procedure.constants import HALVED, PAIRS
from archwright.lab.procedure.looks import Decision, Looks, decide
from archwright.lab.procedure.spikes import Spikes, lowered, spiked
from archwright.lab.procedure.statistics import SharedError
from archwright.lab.procedure.sweep import (
    Bottom,
    Losses,
    Sweep,
    around_vertex,
    bottom,
    first_window,
    lowest_point,
    placing_errors,
    plan_sweep,
    pooled_sweep,
    vertex,
)
from archwright.spec.study_spec import StudySpec

Run = tuple[str, int, float]
"""(variant, seed, power k of the learning rate)."""
TextError = Callable[[str, int], float]
"""(variant, pairs) -> error of the first pairs' mean from the choice of held-out documents, in nats."""


@dataclass(frozen=True)
class Standing:
    """State of a study."""

    sweeps: Mapping[str, Sweep]
    """Tuning of each variant."""
    wanted: Sequence[Run]
    """Missing runs, the most urgent first; empty if the study is complete."""
    compared: Mapping[str, Mapping[int, Sequence[float]]]
    """Powers k of the compared runs, by variant and finished seed: one, or the whole sweep in a study of widths. Runs
    at a learning rate that was halved later are left out."""
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    """Decisions by variant."""
    looks: Looks | None = None
    """None in a study of widths, where each seed sweeps."""
    placing: Mapping[str, float] = field(default_factory=dict)
    """Standard error of each variant's loss from tuning, in nats."""
    unlearnt: Mapping[str, float] = field(default_factory=dict)
    """Lowest loss of each variant that learnt no more than bigrams and is not trained further."""
    spikes: Mapping[str, Sequence[Spikes]] = field(default_factory=dict)
    """Spikes by variant, the first learning rate first; empty if none spiked."""

    @property
    def judged(self) -> dict[str, Any]:
        """Arguments of `effects` in addition to losses."""
        if self.looks is None:
            return {}
        return {"decisions": self.decisions, "looks": self.looks, "placing": self.placing}

    def powers(self, name: str) -> list[float]:
        """Return the powers of a variant's compared runs, a halved rate first."""
        halved = (spikes.k for spikes in self.spikes.get(name, ()))
        return [*dict.fromkeys([*halved, *(k for k, *_ in self.compared.get(name, {}).values())])]


def standing(
    study: StudySpec,
    losses: Mapping[str, Losses],
    *,
    seeds: int | None = None,
    may_shift: bool = True,
    fill: bool = False,
    plateau: Mapping[str, float] | None = None,
    learnt: Mapping[str, float] | None = None,
    text_error: TextError = lambda variant, pairs: 0.0,
    own_starts: Collection[str] = (),
    slope: float | None = None,
) -> Standing:
    """Return the state of a study.

    At most `tuning_seeds` seeds sweep the learning rates of each variant. The baseline is tuned first, and variants
    start around its vertex. New seeds, paired with the baseline's, are trained at the vertex only. Variants decided at
    a look are not trained further. If a compared run of an arm spikes, half the tuned learning rate replaces it for all
    seeds of the arm, once. Without tuning, all seeds have the given rate. In a study of widths each seed sweeps.

    Args:
        losses: Losses by variant, the baseline first; NaN if a run failed.
        seeds: Number of compared seeds, if time is short. Default: all.
        may_shift: True if there is time to move a window for all seeds.
        fill: True if there is time for decided variants.
        plateau: Loss by variant above which nothing was learnt.
        learnt: Loss by variant below which it has learnt. If the baseline has not, the study ends.
        own_starts: Variants that do not start around the baseline's vertex.
        slope: Fall of the baseline's loss per e-fold of compute, in nats. If it is None, no variant is equivalent
            within a margin of compute.
    """
    number = len(study.seed_numbers) if seeds is None else seeds
    if study.widths:
        return _each_sweeps(study, losses, number, may_shift)
    sweeps: dict[str, Sweep] = {}
    powers: dict[str, float] = {}
    bottoms: dict[str, Bottom] = {}
    unlearnt: dict[str, float] = {}
    baseline, start, waiting = next(iter(losses)), None, set[str]()
    for name, known in losses.items():
        most = (learnt or {}).get(name, math.inf)
        if not study.tune_lr:
            sweeps[name], powers[name] = Sweep(range(1), [], [], at_boundary=False), 0.0
            if (lowest := min(known.values(), default=-math.inf)) > most:
                unlearnt[name] = lowest
            continue
        own = name == baseline or name in own_starts
        if baseline in unlearnt or (not own and sweeps[baseline].wanted):
            sweeps[name] = Sweep(first_window(study.lr_grid_size), [], [], at_boundary=False)
            waiting.add(name)
            continue
        sweeps[name] = pooled_sweep(
            known,
            study.tuning_seed_numbers,
            study.lr_grid_size,
            may_shift=may_shift,
            plateau=(plateau or {}).get(name, math.inf),
            start=None if own else start,
        )
        if sweeps[name].seeds and not sweeps[name].wanted:
            powers[name] = vertex(known, sweeps[name])
            bottoms[name] = bottom(known, sweeps[name])
            if (lowest := lowest_point(known, sweeps[name]).loss) > most:
                unlearnt[name] = lowest
        if name == baseline and name in powers and not sweeps[name].at_boundary:
            start = around_vertex(known, sweeps[name])
    powers = {n: k for n, k in powers.items() if not {n, baseline} & unlearnt.keys()}
    bottoms = {n: found for n, found in bottoms.items() if n in powers}
    wanted = [(name, seed, k) for name, sweep in sweeps.items() for seed, k in sweep.wanted]
    variants = [n for n in list(losses)[1:] if n in powers or sweeps[n].wanted or n in waiting]
    looks = Looks(number, study.seeds, study.early_stopping, study.ends)
    judged = _Judged(study, losses, looks, variants, powers, bottoms, text_error, slope)
    if not wanted:
        judged.look()
    decisions = judged.decisions
    compared: dict[str, dict[int, Sequence[float]]] = {
        name: {
            seed: (powers[name],)
            for seed in study.seed_numbers[:number]
            if name in powers and not math.isnan(known.get((seed, powers[name]), math.nan))
        }
        for name, known in losses.items()
    }
    for pairs in looks.numbers:
        # Variants open at this look, or all if there is time, and the baseline with them.
        still = [n for n in variants if fill or n not in decisions or decisions[n].look >= pairs]
        missing = judged.missing([baseline, *still] if still else [], pairs)
        if missing or wanted:
            wanted += missing
            break
    return Standing(
        sweeps, wanted, compared, decisions, looks, judged.placing, unlearnt, judged.spikes
    )


@dataclass
class _Judged:
    """Looks at a study, one after another, until runs are missing."""

    study: StudySpec
    losses: Mapping[str, Losses]
    looks: Looks
    variants: Sequence[str]
    """Variants to compare."""
    powers: dict[str, float]
    bottoms: Mapping[str, Bottom]
    text_error: TextError
    slope: float | None
    decisions: dict[str, Decision] = field(default_factory=dict)
    spikes: dict[str, list[Spikes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.baseline = next(iter(self.losses))
        self.placing = placing_errors(self.bottoms)

    def look(self) -> None:
        """Halve learning rates of spiking arms and decide, look by look."""
        for pairs in self.looks.numbers:
            arms = [self.baseline, *(n for n in self.variants if n not in self.decisions)]
            if len(arms) == 1 or self.missing(arms, pairs):
                return
            while self._halves(arms, pairs):
                if self.missing(arms, pairs):
                    return
            if self.baseline not in self.powers:
                return
            self.decisions |= decide(
                {name: self._differences(name, pairs) for name in self.variants},
                self._margin(pairs),
                self.looks,
                pairs,
                decided=self.decisions,
                shared_errors=self._shared,
            )

    def missing(self, arms: Collection[str], pairs: int) -> list[Run]:
        """Return the missing runs of the first pairs, by seed."""
        return [
            (name, seed, self.powers[name])
            for seed in self.study.seed_numbers[:pairs]
            for name in arms
            if name in self.powers and (seed, self.powers[name]) not in self.losses[name]
        ]

    def _halves(self, arms: Sequence[str], pairs: int) -> bool:
        """Record the spikes of a look; return True if they halve a tuned learning rate."""
        rates = {**self.powers}
        spikes = spiked({name: self._losses(name, pairs) for name in arms if name in rates})
        for name, places in spikes.items():
            before = [s for s in self.spikes.get(name, []) if s.halved]
            seeds = tuple(self.study.seed_numbers[i] for i in places)
            halves = self.study.tune_lr and not before
            self.spikes[name] = [*before, Spikes(rates[name], seeds, pairs, halves)]
            if halves:
                self.powers[name] = lowered(rates[name], self.study.lr_ratio)
                steps = rates[name] - self.powers[name]
                self.placing[name] += HALVED * self.bottoms[name].above(steps)
        return rates != self.powers

    def _losses(self, name: str, pairs: int) -> list[float]:
        k = self.powers[name]
        return [self.losses[name].get((s, k), math.nan) for s in self.study.seed_numbers[:pairs]]

    def _differences(self, name: str, pairs: int) -> list[float]:
        both = zip(self._losses(name, pairs), self._losses(self.baseline, pairs), strict=True)
        return [own - base for own, base in both]

    def _margin(self, pairs: int) -> float:
        """Return the margin in nats; 0 for a margin of compute without a slope."""
        if (compute := self.study.margin_of_compute) is not None:
            return (self.slope or 0.0) * math.log1p(compute)
        finite = [x for x in self._losses(self.baseline, pairs) if not math.isnan(x)]
        return (self.study.margin_of_loss or 0.0) * abs(fmean(finite)) if finite else 0.0

    def _shared(self, variant: str, pairs: int) -> SharedError:
        both = (self.placing.get(name, 0.0) for name in (variant, self.baseline))
        return SharedError(self.text_error(variant, pairs), math.hypot(*both))


def shorter_runs(
    study: StudySpec, compared: Mapping[str, Mapping[int, Sequence[float]]], pairs: int = PAIRS
) -> list[tuple[str, int, float, float]]:
    """Return the runs (variant, seed, k, share) of the first pairs at shorter horizons."""
    if study.widths or not study.horizons:
        return []
    baseline, *variants = compared
    seeds = sorted(compared[baseline])[:pairs]
    if all(compared[name].keys().isdisjoint(seeds) for name in variants):
        return []
    return [
        (name, seed, compared[name][seed][0], share)
        for seed in seeds
        for share in study.horizons
        for name in compared
        if seed in compared[name]
    ]


def runs_for_slope(
    study: StudySpec, baseline: str, now: Standing
) -> list[tuple[str, int, float, float]]:
    """Return the shorter runs (variant, seed, k, share) of the baseline for a margin of compute.

    They precede the first look, because no look finds equivalence without the slope.
    """
    if not study.margin_of_compute:
        return []
    powers = {seed: k for seed, (k, *_) in now.compared.get(baseline, {}).items()}
    powers |= {seed: k for name, seed, k in now.wanted if name == baseline}
    seeds = [seed for seed in study.seed_numbers if seed in powers][:PAIRS]
    return [(baseline, seed, powers[seed], share) for seed in seeds for share in study.horizons]


def _each_sweeps(
    study: StudySpec, losses: Mapping[str, Losses], number: int, may_shift: bool
) -> Standing:
    """Return the state of a study of widths: every seed sweeps every variant."""
    seeds = study.seed_numbers[:number]
    sweeps = {
        name: plan_sweep(known, seeds, study.lr_grid_size, may_shift=may_shift, refine=True)
        for name, known in losses.items()
    }
    order = {seed: i for i, seed in enumerate(seeds)}
    wanted = [(name, seed, k) for name, sweep in sweeps.items() for seed, k in sweep.wanted]
    compared = {
        name: {
            seed: sweep.window
            for seed in sweep.seeds
            if all((seed, k) in losses[name] for k in sweep.window)
        }
        for name, sweep in sweeps.items()
    }
    return Standing(sweeps, sorted(wanted, key=lambda run: (order[run[1]], abs(run[2]))), compared)
