"""Interactions of two choices, against the least squares of a factorial design."""

from dataclasses import replace

import numpy as np
import pytest

from archwright.lab.procedure.interactions import interactions
from archwright.lab.procedure.looks import Looks
from archwright.lab.procedure.statistics import t_interval
from archwright.lab.results import Replicate, RunResult
from archwright.spec.study_spec import StudySpec

A, B = "optimizer.weight_decay=0.3", "schedule.kind=cosine"
STUDY = StudySpec(variants={"a": (A,), "b": (B,), "both": (B, A)}, tune_lr=False)


def replicates(losses: dict[str, np.ndarray]) -> list[Replicate]:
    return [
        Replicate(
            name, seed, float(loss), 1e-3, RunResult(name, name, seed, 1e-3, float(loss), 1.0, 6.0)
        )
        for name, column in losses.items()
        for seed, loss in enumerate(column)
    ]


def drawn(interaction: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    seeds = rng.normal(0, 0.1, 8)  # what all runs of a seed share
    means = {"modern": 3.0, "a": 2.9, "b": 2.8, "both": 2.7 + interaction}
    return {name: mean + seeds + rng.normal(0, 0.004, 8) for name, mean in means.items()}


@pytest.mark.parametrize("planted", [-0.05, 0.0, 0.05])
def test_it_is_the_product_term_of_a_factorial_design(planted: float) -> None:
    losses = drawn(planted)
    (found,) = interactions(STUDY, replicates(losses), "modern")
    rows, y = [], []
    for name, (a, b) in {"modern": (0, 0), "a": (1, 0), "b": (0, 1), "both": (1, 1)}.items():
        for seed, loss in enumerate(losses[name]):
            rows.append([a, b, a * b, *np.eye(8)[seed]])
            y.append(loss)
    coefficients = np.linalg.lstsq(np.array(rows, float), np.array(y), rcond=None)[0]
    assert found.mean == pytest.approx(coefficients[2], abs=1e-9)
    assert (found.interval.low <= 0 <= found.interval.high) == (planted == 0)
    assert (found.first, found.second, found.both, len(found.seeds)) == ("a", "b", "both", 8)
    word = {-0.05: "help each other", 0.0: "inconclusive", 0.05: "get in each other's way"}
    assert word[planted] in found.sentence
    if planted:
        near, far = sorted((abs(found.interval.low), abs(found.interval.high)))
        assert f"(95 % interval {near:.3g} to {far:.3g})" in found.sentence


def test_looking_early_widens_its_interval() -> None:
    losses = drawn(0.05)
    (once,) = interactions(STUDY, replicates(losses), "modern")
    (early,) = interactions(STUDY, replicates(losses), "modern", looks=Looks(16, 16))
    assert early.mean == once.mean
    level = 1 - Looks(16, 16).levels(0.05)[0]
    assert early.interval == replace(t_interval(once.differences, level), level=0.95)
    assert early.interval.low < once.interval.low


def test_it_takes_both_alone_and_together() -> None:
    losses = drawn(0.05)
    assert (
        interactions(
            STUDY.model_copy(update={"variants": {"a": (A,), "b": (B,)}}),
            replicates(losses),
            "modern",
        )
        == []
    )
    assert (
        interactions(STUDY, replicates({n: v for n, v in losses.items() if n != "b"}), "modern")
        == []
    )
    assert interactions(STUDY, replicates(losses), "modern", unfit=["b"]) == []
    few = {**losses, "both": losses["both"][:1]}
    assert interactions(STUDY, replicates(few), "modern") == []
