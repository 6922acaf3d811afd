"""Does a small study decide as a larger one does? Two finished studies of the same variants at two sizes, side by side.

    python -m bench.sizes STUDIES/SMALL STUDIES/LARGE

Beside the variants against the baseline, all pairs of variants count, over the seeds that both have: a difference is
known at a size where its 95 % interval (Student's, unadjusted) leaves out 0. Pairs share variants, so that their
number is not that of independent trials; bounds are bootstrapped over variants.
"""

import argparse
import csv
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from archwright.lab.procedure.statistics import SharedError, t_interval
from archwright.lab.procedure.sweep import Bottom, Sweep, bottom, placing_errors
from archwright.spec.errors import UserError
from archwright.spec.study_spec import StudySpec

DECIDED = ("better", "worse", "equivalent")
BASELINE = ("the baseline", math.nan, math.nan, math.nan)
RESAMPLES = 2000

Matrix = NDArray[np.int64]
"""[variants, variants], above the diagonal."""


@dataclass(frozen=True)
class Study:
    """What the files of a finished study say."""

    losses: dict[str, dict[int, float]]
    """Of each variant, the baseline first, the loss of each compared seed."""
    lrs: dict[str, float]
    """The rate that was found, the mean over seeds where each has its own."""
    outcomes: dict[str, tuple[str, float, float, float]]
    """Of each variant: outcome, mean difference, low and high end of the interval."""
    placing: dict[str, float]
    """By how much the loss of each variant may be too high for where its rate was placed."""
    core_hours: float
    runs: int
    tuning: dict[str, dict[float, float]] = field(default_factory=dict)
    """Of each variant, by rising rate, the mean loss over seeds that only place the rate."""

    @classmethod
    def read(cls, folder: Path) -> "Study":
        """Read the CSV files of a study's folder.

        Raises:
            UserError: there are none.
        """
        losses: dict[str, dict[int, float]] = {}
        lrs: dict[str, list[float]] = {}
        for line in _lines(folder / "replicates.csv"):
            losses.setdefault(line["variant"], {})[int(line["seed"])] = float(line["loss"])
            lrs.setdefault(line["variant"], []).append(float(line["lr"]))
        runs = _lines(folder / "runs.csv")
        seconds = [float(line["cpu_seconds"]) for line in runs]
        outcomes = {
            line["variant"]: (
                line["outcome"],
                float(line["mean"]),
                float(line["low"]),
                float(line["high"]),
            )
            for line in _lines(folder / "effects.csv")
        }
        found = {name: math.exp(fmean(map(math.log, values))) for name, values in lrs.items()}
        hours = sum(filter(math.isfinite, seconds)) / 3600
        bottoms = {name: _bottom(name, runs, compared) for name, compared in losses.items()}
        placing = dict.fromkeys(losses, 0.0) | placing_errors(
            {name: one for name, one in bottoms.items() if one}
        )
        tuning = {name: _by_rate(name, runs, compared) for name, compared in losses.items()}
        return cls(losses, found, outcomes, placing, hours, len(runs), tuning)

    def pairs(self, names: Sequence[str]) -> tuple[Matrix, Matrix]:
        """Return, for each two variants, the sign of the mean difference over the seeds that both have, and the same
        where its interval leaves out 0, else 0."""
        signs, known = np.zeros((2, len(names), len(names)), int)
        for i, j in combinations(range(len(names)), 2):
            one, other = (self.losses[names[at]] for at in (i, j))
            differences = [other[seed] - one[seed] for seed in sorted(one.keys() & other.keys())]
            if len(differences) >= 2:
                placed = math.hypot(*(self.placing[names[at]] for at in (i, j)))
                interval = t_interval(differences, shared_error=SharedError(placing=placed))
                signs[i, j] = np.sign(fmean(differences))
                known[i, j] = signs[i, j] * (not interval.low <= 0 <= interval.high)
        return signs, known


def _bottom(
    name: str, runs: Sequence[Mapping[str, str]], compared: Collection[int]
) -> Bottom | None:
    """Return the bottom that the seeds found that are not compared; None if there are none."""
    rates = {
        (int(run["seed"]), float(run["lr"])): float(run["loss"])
        for run in runs
        if run["variant"] == name and run["counts"] == "True" and int(run["seed"]) not in compared
    }
    ratio = StudySpec().lr_ratio
    tuning = {(seed, math.log(lr, ratio)): loss for (seed, lr), loss in rates.items()}
    window = sorted({k for _, k in tuning})
    seeds = [s for s in sorted({s for s, _ in tuning}) if all((s, k) in tuning for k in window)]
    return bottom(tuning, Sweep(window, [], seeds, at_boundary=False)) if seeds else None


def _by_rate(
    name: str, runs: Sequence[Mapping[str, str]], compared: Collection[int]
) -> dict[float, float]:
    """Return the mean loss of the seeds that are not compared, at each of their rates."""
    found: dict[float, list[float]] = {}
    for run in runs:
        if run["variant"] == name and int(run["seed"]) not in compared:
            found.setdefault(float(run["lr"]), []).append(float(run["loss"]))
    return {lr: fmean(losses) for lr, losses in sorted(found.items())}


def _lines(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        raise UserError(f"{file}: no such file; expected the folder of a finished study")
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


@dataclass(frozen=True)
class Agreement:
    """How two studies compare over all pairs of variants."""

    pairs: int
    signs: int
    """Pairs whose mean differences have one sign."""
    known_small: int
    """Pairs whose difference is known at the small size."""
    right: int
    """Of these, known at the large size, too, with the same sign."""
    wrong: int
    """Of these, known at the large size with the other sign."""

    @classmethod
    def of(cls, small: tuple[Matrix, Matrix], large: tuple[Matrix, Matrix]) -> "Agreement":
        """Count pairs, given signs and known signs at both sizes; none of a variant with itself."""
        signs, both = small[0] * large[0], small[1] * large[1]
        counts = ((signs != 0), (signs > 0), (small[1] != 0), (both > 0), (both < 0))
        return cls(*(int(found.sum()) for found in counts))


def bounds(
    small: tuple[Matrix, Matrix], large: tuple[Matrix, Matrix]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return 95 % bounds of the shares of equal signs, and of right ones among those known at both sizes, from
    variants drawn with replacement."""
    rng, number, shares = np.random.default_rng(0), len(small[0]), []
    whole = [[matrix - matrix.T for matrix in study] for study in (small, large)]
    for _ in range(RESAMPLES):
        at = np.ix_(drawn := rng.integers(number, size=number), drawn)
        found = Agreement.of(*((signs[at], known[at]) for signs, known in whole))
        both = found.right + found.wrong
        signs = found.signs / found.pairs if found.pairs else math.nan
        shares.append((signs, found.right / both if both else math.nan))
    low, high = np.nanquantile(np.array(shares), (0.025, 0.975), axis=0)
    return (float(low[0]), float(high[0])), (float(low[1]), float(high[1]))


def report(small: Study, large: Study) -> str:
    """Return both studies as Markdown."""
    names = [name for name in small.losses if name in large.losses]
    lines = [
        "| variant | rate | small | outcome | rate | large | outcome |",
        "|---|---:|---:|---|---:|---:|---|",
    ]
    for name in names:
        cells = []
        for study in (small, large):
            outcome, mean, low, high = study.outcomes.get(name, BASELINE)
            numbers = f"{mean:+.3f} ({low:+.3f} to {high:+.3f})" if math.isfinite(mean) else ""
            cells.append(f"{study.lrs[name]:.2g} | {numbers} | {outcome}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for label, study in (("small", small), ("large", large)):
        decided = sum(outcome[0] in DECIDED for outcome in study.outcomes.values())
        lines.append(
            f"\n{label}: {decided} of {len(study.outcomes)} decided in {study.runs} runs, "
            f"{study.core_hours:.2f} core-hours"
        )
    both = [n for n in names if n in small.outcomes and n in large.outcomes]
    alike = [n for n in both if small.outcomes[n][0] == large.outcomes[n][0] in DECIDED]
    against = [
        n for n in both if {small.outcomes[n][0], large.outcomes[n][0]} == {"better", "worse"}
    ]
    lines.append(
        f"decided alike: {len(alike)} of {len(both)}, {len(alike) / small.core_hours:.1f} for each core-hour of the "
        f"small study; the other way round: {len(against)}"
    )
    near, far = small.pairs(names), large.pairs(names)
    found = Agreement.of(near, far)
    signs, right = (f"{low:.0%} to {high:.0%}" for low, high in bounds(near, far))
    lines.append(
        f"all {found.pairs} pairs: one sign in {found.signs} ({found.signs / found.pairs:.0%}; {signs}); known at the "
        f"small size {found.known_small}, of which at the large size {found.right} with the same sign and "
        f"{found.wrong} with the other ({found.right / max(1, found.right + found.wrong):.0%} right; {right})"
    )
    return "\n".join(lines)


def main() -> None:
    """Read two studies and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("small", type=Path)
    parser.add_argument("large", type=Path)
    options = parser.parse_args()
    try:
        print(report(Study.read(options.small), Study.read(options.large)))
    except UserError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
