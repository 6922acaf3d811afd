"""Cost of a finished study if it were made again, and how often its verdicts would be the same.

    python -m bench.choices docs/ten-choices/0.2M --draws 200

Every variant gets the parabola through its lowest tuning losses, a wall where a recorded loss stands far above that,
the difference that was found, and the noise of its pairs. Runs are drawn from these, and asked for and judged by the
code of real studies (`bench.simulate`). A verdict is right here if it is the one that was recorded.
"""

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from archwright.spec.study_spec import StudySpec
from bench.replay import INITIAL, JITTER, Valley, drawn
from bench.simulate import Surface, simulate
from bench.sizes import DECIDED, Study

ABOVE = 0.5
"""Nats by which a loss stands above the parabola where a wall is."""


@dataclass(frozen=True)
class Recorded:
    """A variant of a finished study."""

    valley: Valley
    bottom: float
    """Where its lowest loss lies, as a power of the ratio between rates."""
    loss: float
    noise: float
    """Standard deviation of its differences from the baseline; of the baseline, of its losses over seeds."""
    outcome: str

    def surface(self, shared: Sequence[float], rng: np.random.Generator) -> Surface:
        """Return losses whose seeds share what the baseline's have."""
        bottoms = self.bottom + rng.normal(0, JITTER, len(shared))
        change = self.loss - self.valley.loss(0.0)

        def loss(seed: int, k: float) -> float:
            plain = self.valley.loss(k - float(bottoms[seed])) + change
            own = rng.normal(0, self.noise) if self.outcome != "the baseline" else 0.0
            return min(plain + shared[seed] + own, INITIAL)

        return loss


def recorded(folder: Path, start: float, ratio: float) -> dict[str, Recorded]:
    """Return the variants of a finished study, the baseline first.

    Args:
        start: the learning rate at the power 0.
        ratio: between rates.
    """
    study = Study.read(folder)
    baseline = next(iter(study.losses))
    found = {}
    for name, losses in study.losses.items():
        rates = study.tuning[name]
        powers = [math.log(lr / start, ratio) for lr in rates]
        valley, bottom = _parabola(powers, list(rates.values()))
        base = study.losses[baseline]
        pairs = [losses[seed] - base[seed] for seed in losses.keys() & base.keys()]
        outcome, mean = ("the baseline", 0.0) if name == baseline else study.outcomes[name][:2]
        noise = statistics.stdev(base.values() if name == baseline else pairs)
        found[name] = Recorded(
            valley, bottom, statistics.fmean(base.values()) + mean, noise, outcome
        )
    return found


def _parabola(powers: Sequence[float], losses: Sequence[float]) -> tuple[Valley, float]:
    """Return the valley through the lowest loss and those beside it, and where its bottom lies."""
    fallen = [
        loss > min(losses) + ABOVE and k > powers[np.argmin(losses)]
        for k, loss in zip(powers, losses, strict=True)
    ]
    kept = fallen.index(True) if any(fallen) else len(powers)
    losses = np.minimum(losses, min(losses) + ABOVE)  # a wall may stand beside the lowest one
    best = max(min(int(np.argmin(losses)), kept - 2), 1)
    c, b, a = np.polyfit(powers[best - 1 : best + 2], losses[best - 1 : best + 2], 2)
    bottom, lowest = -b / (2 * c), a - b**2 / (4 * c)
    wall = powers[kept] - bottom if kept < len(powers) else math.inf
    return Valley(c / lowest, c / lowest, wall=wall, above=INITIAL), bottom


@dataclass(frozen=True)
class Finding:
    """The outcome of one draw."""

    tuning: int
    compared: int
    decided: int
    right: int


def findings(
    variants: Mapping[str, Recorded], study: StudySpec, draws: Sequence[int], *, processes: int = 1
) -> list[Finding]:
    """Return what a study says of draws, each of a number of its own."""
    return drawn(partial(_finding, variants, study), draws, processes)


def _finding(variants: Mapping[str, Recorded], study: StudySpec, draw: int) -> Finding:
    rng = np.random.default_rng(draw)
    baseline = next(iter(variants.values()))
    number = study.tuning_seeds + len(study.seed_numbers)
    shared = rng.normal(0, baseline.noise, number)
    found = simulate({name: v.surface(shared, rng) for name, v in variants.items()}, study)
    compared = sum(
        len(powers) for seeds in found.standing.compared.values() for powers in seeds.values()
    )
    outcomes = {effect.variant: effect.outcome for effect in found.effects}
    return Finding(
        tuning=found.runs - compared,
        compared=compared,
        decided=sum(outcome in DECIDED for outcome in outcomes.values()),
        right=sum(outcome == variants[name].outcome for name, outcome in outcomes.items()),
    )


def table(
    variants: Mapping[str, Recorded],
    draws: int,
    study: StudySpec,
    *,
    processes: int = 1,
) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield (
        "| draws | runs that tune alone | compared | runs | decided | as recorded | "
        "runs for each of these |"
    )
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    found = findings(variants, study, range(draws), processes=processes)
    tuning, compared, decided, right = (
        statistics.fmean(getattr(f, field) for f in found)
        for field in ("tuning", "compared", "decided", "right")
    )
    cells = (
        *(f"{draws:,}", f"{tuning:.1f}", f"{compared:.1f}", f"{tuning + compared:.1f}"),
        *(f"{decided:.2f}", f"{right:.2f}", f"{(tuning + compared) / right:.2f}"),
    )
    yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description="What a finished study would cost if it were made again."
    )
    parser.add_argument("folder", type=Path, help="of a finished study, with its CSV files")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--lr", type=float, default=0.01, help="at which the study starts")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    ratio = StudySpec().lr_ratio
    variants = recorded(options.folder, options.lr, ratio)
    for line in table(variants, options.draws, StudySpec(), processes=options.processes):
        print(line, flush=True)


if __name__ == "__main__":
    main()
