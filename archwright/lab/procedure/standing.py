"""The procedure of a study: which runs are wanted next, and which of them are compared. It knows losses and
nothing else."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import fmean
from typing import Any

from archwright.lab.procedure.looks import ALPHA, Decision, Looks, SharedErrors, decide
from archwright.lab.procedure.statistics import SharedError
from archwright.lab.procedure.sweep import (
    Losses,
    Sweep,
    around_vertex,
    first_window,
    lowest_point,
    placing_error,
    plan_sweep,
    pooled_sweep,
    vertex,
)
from archwright.spec.study_spec import StudySpec

PAIRS = 4
"""Pairs that are trained again for shares of the steps."""

Run = tuple[str, int, float]
"""A variant, a seed, and the power k of the ratio that its learning rate is."""
TextError = Callable[[str, int], float]
"""(variant, pairs) -> standard error of the mean of so many pairs from the choice of held-out documents, in nats."""


@dataclass(frozen=True)
class Spikes:
    """Compared runs that ended far above the others of their variant."""

    k: float
    """Power of the learning rate they ran at."""
    seeds: tuple[int, ...]
    """Seeds that spiked."""
    compared: int
    """Seeds compared at that learning rate."""
    halved: bool
    """All seeds of the variant were then trained again at half of it."""


@dataclass(frozen=True)
class Standing:
    """Where a study stands."""

    sweeps: Mapping[str, Sweep]
    """The tuning of each variant."""
    wanted: Sequence[Run]
    """Runs still missing, the most urgent first. None: the study is complete."""
    compared: Mapping[str, Mapping[int, Sequence[float]]]
    """Of each variant, the finished seeds that are compared, each with the powers k of its runs: one, or its
    own sweep."""
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    """Outcomes of the variants that are decided, each with its look."""
    looks: Looks | None = None
    """None: each seed sweeps for itself, and pairs are looked at once."""
    placing: Mapping[str, float] = field(default_factory=dict)
    """By how much the loss of each variant may be too high for where its rate was placed, in nats."""
    unlearnt: Mapping[str, float] = field(default_factory=dict)
    """Variants that are trained no further, as they learnt no more than bigrams, with their lowest loss."""
    spikes: Mapping[str, Sequence[Spikes]] = field(default_factory=dict)
    """Runs that ended far above the others of their variant, the first learning rate first."""

    @property
    def judged(self) -> dict[str, Any]:
        """The arguments of `effects` beside losses."""
        if self.looks is None:
            return {}
        return {"decisions": self.decisions, "looks": self.looks, "placing": self.placing}


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
) -> Standing:
    """Return the state of a study.

    `tuning_seeds` seeds at most sweep the learning rates of each variant, the baseline first; others start around its
    vertex. Fresh seeds, paired with the baseline's, are trained at the vertex alone. At each look, variants that are
    decided are trained no further. Without tuning, every seed has the given rate. In a study of widths each seed
    sweeps for itself and is compared by the lowest point of its parabola.

    Args:
        losses: by variant, the baseline first; NaN if a run failed.
        seeds: number of compared seeds, if time does not allow for all.
        may_shift: whether time allows a window of learning rates to move for all seeds.
        fill: whether there is time for variants that are decided.
        plateau: by variant, the loss above which nothing was learnt.
        learnt: By variant, the loss that it must be below once its rate is tuned or given. If the baseline is not, the
            study ends.
        text_error: error of a variant's mean over so many pairs, from the choice of held-out documents.
        own_starts: variants that do not start around the baseline's vertex.
    """
    number = len(study.seed_numbers) if seeds is None else seeds
    if study.widths:
        return _each_sweeps(study, losses, number, may_shift)
    sweeps: dict[str, Sweep] = {}
    powers: dict[str, float] = {}
    placing: dict[str, float] = {}
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
            placing[name] = placing_error(known, sweeps[name])
            if (lowest := lowest_point(known, sweeps[name]).loss) > most:
                unlearnt[name] = lowest
        if name == baseline and name in powers and not sweeps[name].at_boundary:
            start = around_vertex(known, sweeps[name])
    powers = {n: k for n, k in powers.items() if not {n, baseline} & unlearnt.keys()}
    wanted = [(name, seed, k) for name, sweep in sweeps.items() for seed, k in sweep.wanted]
    compared: dict[str, dict[int, Sequence[float]]] = {name: {} for name in losses}
    for name, k in powers.items():
        for seed in study.seed_numbers[:number]:
            if not math.isnan(losses[name].get((seed, k), math.nan)):
                compared[name][seed] = (k,)
    failed = {
        n
        for n, sweep in sweeps.items()
        if n not in powers and not sweep.wanted and n not in waiting
    }

    def shared(variant: str, pairs: int) -> SharedError:
        both = (placing.get(name, 0.0) for name in (variant, baseline))
        return SharedError(text_error(variant, pairs), math.hypot(*both))

    looks = Looks(number, study.seeds, study.early_stopping, study.ends)
    decisions = decided(study, losses, powers, looks, failed, shared)
    for pairs in looks.numbers:
        # Those that are open at this look, all where time is left, and the baseline while any is.
        variants = [
            n
            for n in list(losses)[1:]
            if n not in failed and (fill or n not in decisions or decisions[n].look >= pairs)
        ]
        arms = [baseline, *variants] if variants else []
        until = study.seed_numbers[:pairs]
        missing = [
            (name, seed, powers[name])
            for seed in until
            for name in arms
            if name in powers and (seed, powers[name]) not in losses[name]
        ]
        if missing or wanted:
            wanted += missing
            break
    return Standing(sweeps, wanted, compared, decisions, looks, placing, unlearnt)


def shorter_runs(
    study: StudySpec, compared: Mapping[str, Mapping[int, Sequence[float]]], pairs: int = PAIRS
) -> list[tuple[str, int, float, float]]:
    """Return the runs (variant, seed, k, share) that show the first pairs at shorter horizons."""
    if study.widths:
        return []
    baseline, *variants = compared
    seeds = sorted(compared[baseline])[:pairs]
    kept = {name: [s for s in seeds if s in compared[name]] for name in variants}
    kept = {name: both for name, both in kept.items() if both}
    arms = {baseline: seeds, **kept} if kept else {}
    return [
        (name, seed, compared[name][seed][0], share)
        for seed in seeds
        for share in study.horizons
        for name in arms
        if seed in arms[name]
    ]


def decided(
    study: StudySpec,
    losses: Mapping[str, Losses],
    powers: Mapping[str, float],
    looks: Looks,
    failed: Collection[str],
    shared_errors: SharedErrors,
) -> dict[str, Decision]:
    """Return what was decided of each variant at the looks that all seeds for are there."""
    baseline, *variants = losses
    # Losses of compared seeds up to the first that is not finished; NaN where one failed.
    finished = {
        name: [*map(known.__getitem__, takewhile(known.__contains__, runs))]
        for name, known in losses.items()
        if name in powers
        for runs in [[(seed, powers[name]) for seed in study.seed_numbers[: looks.seeds]]]
    }
    first = finished.get(baseline, [])
    # A variant whose tuning failed keeps no other from being decided.
    differences = {
        name: [own - base for own, base in zip(finished.get(name, []), first, strict=False)]
        for name in variants
        if name not in failed
    }
    known = [[loss for loss in first[: n + 1] if not math.isnan(loss)] for n in range(len(first))]
    return decide(
        differences,
        [study.equivalence_margin * abs(fmean(losses)) if losses else 0.0 for losses in known],
        looks,
        ALPHA,
        shared_errors,
    )


def _each_sweeps(
    study: StudySpec, losses: Mapping[str, Losses], number: int, may_shift: bool
) -> Standing:
    """Every seed tunes every variant, the window placed by the first."""
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
