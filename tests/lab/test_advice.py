"""What would decide an inconclusive variant, against the looks that decide."""

from dataclasses import replace

import numpy as np
import pytest

from archwright.lab.advice import more_seeds
from archwright.lab.looks import ALPHA, Looks, decide
from archwright.lab.results import Effect, Replicate, RunResult
from archwright.lab.verdict import effects
from archwright.spec.study_spec import StudySpec

LOSS = 3.5


def pairs(number: int, mean: float, deviation: float) -> list[float]:
    """Return differences that have exactly this mean and standard deviation."""
    drawn = np.random.default_rng(0).normal(size=number)
    drawn = (drawn - drawn.mean()) / drawn.std(ddof=1)
    return [float(d) for d in mean + deviation * drawn]


def effect_of(differences: list[float], looks: Looks) -> Effect:
    replicates = [
        Replicate(name, seed, loss, 1e-3, RunResult("", name, seed, 1e-3, loss, 1.0, 6.0))
        for seed, d in enumerate(differences)
        for name, loss in (("old", LOSS), ("new", LOSS + d))
    ]
    study = StudySpec(variants={"new": ("dim=8",)})
    (found,) = effects(replicates, study, "old", decisions={}, looks=looks)
    return found


@pytest.mark.parametrize("mean", [0.03, 0.01])  # superior then, equivalent then
def test_as_many_seeds_as_are_advised_decide_and_half_of_them_do_not(mean: float) -> None:
    looks, deviation = Looks(10, 10, early=False), 0.05
    effect = effect_of(pairs(10, mean, deviation), looks)
    more = more_seeds(effect, looks, ALPHA)

    def decided(added: int) -> bool:
        drawn = [*pairs(10, mean, deviation), *pairs(added, mean, deviation)]
        judged = replace(looks, ends=(10, 10 + added))
        return bool(decide({"new": drawn}, [0.01 * LOSS] * len(drawn), judged, ALPHA))

    assert effect.outcome == "inconclusive"
    assert more >= 4
    assert decided(more)
    assert not decided(more // 2)


def test_more_than_anybody_waits_for_is_not_advised() -> None:
    looks = Looks(10, 10, early=False)
    assert more_seeds(effect_of(pairs(10, 0.034, 0.2), looks), looks, ALPHA) == 0
