"""A study of widths: how far best rates move, by vertices that are known, and by runs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from archwright.lab.compare import compare
from archwright.lab.design.variants import arms, at_width, words_of
from archwright.lab.design.widths import PLACING, drifts, headline, rates_words, verdict
from archwright.lab.results import Replicate, StudyResults
from archwright.reporting.document import HEADLINE_WORDS
from archwright.spec.errors import UserError
from archwright.spec.study_spec import StudySpec
from tests.lab import made_results as made
from tests.lab.small import COMMON, working_in

STUDY = StudySpec(variants={"muP": ("init.kind=mup",)}, widths=(32, 64, 128))
STEP = math.log(2)


def replicates(lrs: Mapping[str, Sequence[float]], *, ends: int = 0) -> list[Replicate]:
    """Return seeds with these vertices by arm, the first so many of each at an end of the grid."""
    run = made.two_variants().runs[0]
    return [
        Replicate(arm, seed, 2.0, lr, replace(run, variant=arm), seed < ends)
        for arm, known in lrs.items()
        for seed, lr in enumerate(known)
    ]


def steps(step: float = STEP) -> dict[str, float]:
    return dict.fromkeys(words_of(STUDY), step)


def arms_of(
    modern: Sequence[Sequence[float]], mup: Sequence[Sequence[float]]
) -> dict[str, list[float]]:
    named = (("modern", modern), ("muP", mup))
    return {
        at_width(name, width): list(found)
        for name, known in named
        for width, found in zip(STUDY.widths, known, strict=True)
    }


def test_arms_are_each_variant_at_each_width() -> None:
    assert list(words_of(STUDY)) == [
        *("modern, dim 32", "modern, dim 64", "modern, dim 128"),
        *("muP, dim 32", "muP, dim 64", "muP, dim 128"),
    ]
    runs = arms(STUDY, 5e4)
    assert [run.model.dim for run in runs.values()] == [32, 64, 128] * 2
    assert [run.model.init.kind for run in runs.values()] == ["glorot"] * 3 + ["mup"] * 3
    first = runs["modern, dim 32"]
    assert {run.optimizer for run in runs.values()} == {first.optimizer}  # one lattice of rates
    assert {run.batch_size for run in runs.values()} == {first.batch_size}


def test_a_drift_by_hand() -> None:
    """Two seeds of each arm, a factor of 1.21 apart but for one arm: s² has one degree of freedom for each of six."""
    known = arms_of(
        [[0.02 * 1.1, 0.02 / 1.1], [0.01 * 1.1, 0.01 / 1.1], [0.005 * 1.1, 0.005 / 1.1]],
        [[0.02 * 1.1, 0.02 / 1.1], [0.02 * 1.1, 0.02 / 1.1], [0.02, 0.02]],
    )
    falls, stays = drifts(replicates(known), STUDY, steps(), {})
    deviation = math.sqrt(5 * 2 * math.log(1.1) ** 2 / 6)
    t = stats.t.ppf(0.975, 6)
    one = math.sqrt((t * deviation) ** 2 / 2 + (PLACING * STEP) ** 2)
    assert [rate.lr for rate in falls.rates] == pytest.approx([0.02, 0.01, 0.005])
    assert falls.rates[1].low == pytest.approx(0.01 * math.exp(-one))
    assert falls.rates[1].high == pytest.approx(0.01 * math.exp(one))
    assert falls.factor == pytest.approx(0.25)
    assert falls.high == pytest.approx(0.25 * math.exp(one * math.sqrt(2)))
    assert (stays.factor, falls.low * falls.high) == pytest.approx((1.0, 0.25**2))
    said = verdict([falls, stays], made.two_variants().variants, tokens=1e5, text="t", device="d")
    low, high = 4 / math.exp(one * math.sqrt(2)), 4 * math.exp(one * math.sqrt(2))
    assert (
        f"the best learning rate of modern falls by a factor of 4 (95 % interval {low:.2g} to {high:.2g})"
        in said
    )
    assert "of muP moves by less than its error, a factor of 1 (95 % interval" in said
    assert said.startswith("From width 32 to 128, ")
    named = "With width, the best learning rate of modern falls, of muP holds"
    assert headline([falls, stays], HEADLINE_WORDS) == named
    assert len(named.split()) <= HEADLINE_WORDS
    assert headline([falls, stays], 8) == "Best learning rates with width: 1 falls, 1 holds"
    assert headline([], HEADLINE_WORDS) == "No variant has ended at two widths yet"


def test_intervals_hold_the_true_factor() -> None:
    """Of vertices that are normal and moved by what a parabola may miss, 95 % or more of intervals hold the factor."""
    random = np.random.default_rng(0)
    held, truth = 0, math.log(1 / 3)
    number = 400
    for _ in range(number):
        missed = random.uniform(-PLACING, PLACING, 6) * STEP
        means = [*(truth * i / 2 for i in range(3)), 0, 0, 0]
        logs = (np.array(means) + missed)[:, None] + random.normal(0, 0.3, (6, 3))
        known = dict(zip(words_of(STUDY), np.exp(logs).tolist(), strict=True))
        falls, _ = drifts(replicates(known), STUDY, steps(), {})
        held += falls.low < math.exp(truth) < falls.high
    assert held / number > 0.93


def test_a_single_seed_has_no_error() -> None:
    known = arms_of([[0.02], [0.01], [0.005]], [[0.02], [0.02], [0.02]])
    falls, _ = drifts(replicates(known), STUDY, steps(), {})
    assert falls.factor == pytest.approx(0.25)
    assert (falls.low, falls.high) == (0.0, math.inf)
    assert rates_words(falls).startswith("modern: 2e-2 (one seed) at dim 32, 1e-2 (one seed) at")
    sentence = verdict([falls], made.two_variants().variants, tokens=1, text="t", device="d")
    assert "of modern moves by a factor of 0.25, by one seed" in sentence


def test_what_lies_at_an_end_of_the_grid_is_not_known() -> None:
    known = arms_of([[0.02, 0.02]] * 3, [[0.02, 0.02]] * 3)
    both = drifts(replicates(known, ends=2), STUDY, steps(), {})
    said = verdict(both, made.two_variants().variants, tokens=1e5, text="t", device="d")
    assert "of modern is not known, as at widths 32 and 128 it lies at the edge of the grid" in said
    half = drifts(replicates(known, ends=1), STUDY, steps(), {})
    assert not any(rate.at_boundary for drift in half for rate in drift.rates)


def test_where_little_was_learnt_the_best_rate_is_not_known() -> None:
    """A model that knows how often tokens occur has a lowest loss at some rate, which says nothing of others."""
    known = arms_of([[0.02, 0.02]] * 3, [[0.02, 0.02], [0.01, 0.01], [0.005, 0.005]])
    above = {"muP, dim 32": 1.9, "muP, dim 64": 1.9, "modern, dim 128": 2.1}  # losses are 2.0
    modern, mup = drifts(replicates(known), STUDY, steps(), above)
    said = verdict([modern, mup], made.two_variants().variants, tokens=1e5, text="t", device="d")
    assert "of modern moves by less than its error" in said
    assert (
        "of muP is not known, as at width 32 it learnt hardly more than how often tokens occur"
        in said
    )
    assert headline([modern, mup], HEADLINE_WORDS).endswith("of modern holds, of muP unknown")


def test_widths_that_have_not_ended_are_left_out() -> None:
    known = {"modern, dim 32": [0.02, 0.02], "modern, dim 64": [0.01, 0.01], "muP, dim 32": [0.02]}
    found = drifts(replicates(known), STUDY, steps(), {})
    assert [(drift.name, len(drift.rates)) for drift in found] == [("modern", 2), ("muP", 1)]
    said = verdict(found, made.two_variants().variants, tokens=1e5, text="t", device="d")
    assert "muP" not in said
    assert drifts([], STUDY, steps(), {}) == []
    assert verdict([], made.two_variants().variants, tokens=1, text="t", device="d").startswith(
        "No variant"
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"widths": "16"}, "widths: found 16; expected two widths or more, such as 32,64,128"),
        ({"widths": "16,32", "tune_lr": False}, "--widths: found --no-tune-lr"),
    ],
)
def test_what_widths_do_not_go_with(options: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as error:
        compare("modern", ":norm.kind=layer", **options)
    assert error.value.lines[0].startswith(line)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with working_in(tmp_path_factory.mktemp("widths")) as folder:
        yield folder


@pytest.fixture(scope="module")
def results(place: Path) -> StudyResults:
    common = [word for word in COMMON if not word.startswith("model.dim")]
    options: dict[str, Any] = {
        "budget": "10steps",
        "seeds": 2,
        "evaluation_tokens": 1024,
        "lr_ratio": 2.0,
    }
    words = ("modern", ":init.kind=mup,init.base_dim=16", "data.text=text.txt", *common)
    return compare(*words, widths="16,32", quiet=True, out="study", **options)


def test_every_seed_sweeps_at_every_width(results: StudyResults) -> None:
    assert results.complete
    names = [at_width(n, w) for n in ("modern", "init.kind=mup:init.base_dim=16") for w in (16, 32)]
    assert [variant.name for variant in results.variants] == names
    assert [variant.dim for variant in results.variants] == [16, 32, 16, 32]
    for name in names:
        for seed in (0, 1):
            assert len([r for r in results.runs if (r.variant, r.seed) == (name, seed)]) >= 3
    assert results.effects == []
    assert "better" not in results.verdict


def test_best_rates_are_means_of_the_vertices_of_seeds(results: StudyResults) -> None:
    for drift in results.drifts:
        for rate in drift.rates:
            seeds = [r for r in results.replicates if r.variant == at_width(drift.name, rate.width)]
            assert len(seeds) == rate.seeds == 2
            assert rate.lr == pytest.approx(math.prod(s.lr for s in seeds) ** 0.5)
        assert drift.factor == pytest.approx(drift.rates[-1].lr / drift.rates[0].lr)


def test_a_finished_study_trains_nothing_again(results: StudyResults, place: Path) -> None:
    written = {f: f.stat().st_mtime_ns for f in place.rglob("metrics.jsonl")}
    again = compare(str(place / "study" / "study.toml"), quiet=True, out="study")
    assert again.drifts == results.drifts
    assert {f: f.stat().st_mtime_ns for f in place.rglob("metrics.jsonl")} == written
