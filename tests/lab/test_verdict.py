"""Outcomes against scipy's tests and a table of cases, and the sentences word by word."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from archwright.lab.procedure.looks import Decision, Looks
from archwright.lab.procedure.verdict import ALPHA, effects, is_unlearnt
from archwright.lab.results import Replicate, RunResult
from archwright.spec.study_spec import StudySpec

BASE = (3.50, 3.52, 3.48, 3.51, 3.49)


def run(variant, seed, loss, failed=""):
    key = f"{variant}-{seed}"
    return RunResult(key, variant, seed, 1e-3, loss, loss / 2.5, initial_loss=5.5, failed=failed)


def replicates(**losses):
    return [
        Replicate(name, seed, loss, 1e-3, run(name, seed, loss))
        for name, values in losses.items()
        for seed, loss in enumerate(values)
        if not math.isnan(loss)
    ]


def study(*names, **options):
    return StudySpec(
        variants={name: (f"dim={8 * i + 8}",) for i, name in enumerate(names)}, **options
    )


def found(differences, base=BASE, options=None, **more):
    """The effect of variant `new`, by its differences from `old`."""
    losses = [b + d for b, d in zip(base, differences, strict=True)]
    [effect] = effects(
        replicates(old=base, new=losses), study("new", **(options or {})), "old", **more
    )
    return effect


def lost(name, number):
    """So many runs of a study with five more seeds came to no end."""
    runs = [run(name, 5 + i, 3.0, "no memory") for i in range(number)]
    return {"options": {"seeds": 10}, "runs": runs}


def test_numbers_are_those_of_a_paired_t_test():
    rng = np.random.default_rng(0)
    base, new = rng.normal(3.5, 0.02, 7), rng.normal(3.4, 0.02, 7)
    [effect] = effects(replicates(old=base, new=new), study("new"), "old")
    expected = stats.ttest_rel(new, base)
    ninety = expected.confidence_interval(0.90)
    assert effect.p_value == pytest.approx(expected.pvalue) == effect.holm_p_value
    assert (effect.interval.low, effect.interval.high) == pytest.approx(
        tuple(expected.confidence_interval(0.95))
    )
    assert (effect.equivalence.low, effect.equivalence.high) == pytest.approx(tuple(ninety))
    assert effect.t_interval == effect.interval
    assert effect.mean == pytest.approx(new.mean() - base.mean())
    assert effect.margin == pytest.approx(0.01 * base.mean())
    assert effect.differences == pytest.approx(new - base)
    assert effect.bits_per_byte == pytest.approx(effect.mean / 2.5)
    assert effect.share == pytest.approx(new.mean() / base.mean() - 1)


def test_seeds_are_paired_by_number_not_by_order():
    both = replicates(old=(3.0, math.nan, 3.4, 3.2), new=(2.9, 2.0, 3.3, math.nan))
    [effect] = effects(both[::-1], study("new"), "old")
    assert effect.seeds == (0, 2)
    assert effect.differences == pytest.approx((-0.1, -0.1))
    assert effect.baseline_loss == pytest.approx(3.2)


@pytest.mark.parametrize(
    ("differences", "outcome", "words"),
    [
        (
            (-0.21, -0.22, -0.20, -0.23, -0.20),
            "better",
            "new is better than old: the loss of new is 0.212 nats",
        ),
        (
            (0.21, 0.22, 0.20, 0.23, 0.20),
            "worse",
            "new is worse than old: the loss of new is 0.212 nats",
        ),
        (
            (-0.021, -0.02, -0.02, -0.021, -0.02),
            "better",
            "; that is smaller than the margin of 1 % f",
        ),
        ((-0.001, -0.0011, -0.001, -0.0009, -0.001), "below the noise", "; the pairs agree, but"),
        ((0.001, 0.0011, 0.001, 0.0009, 0.001), "below the noise", "moves the mean as much (0.01"),
        (
            (0.01, -0.01, 0.002, -0.005, 0.003),
            "equivalent",
            "lies within ±0.0350, the margin of 1 %",
        ),
        (
            (0.1, -0.1, 0.02, -0.05, 0.03),
            "inconclusive",
            "The comparison of new with old is inconclusive.",
        ),
        ((0.0, 0.0, 0.0, 0.0, 0.0), "equivalent", "new and old are equivalent"),
    ],
)
def test_outcomes(differences, outcome, words):
    effect = found(differences)
    assert effect.outcome == outcome
    assert words in effect.sentence
    assert effect.sentence.endswith(".")
    assert "nan" not in effect.sentence


@pytest.mark.slow
@given(
    st.lists(st.floats(-0.2, 0.2), min_size=5, max_size=5),
    st.floats(-0.2, 0.2),
    st.floats(0.001, 0.05),
)
def test_every_outcome_follows_its_definition(differences, shift, margin):
    differences = [d + shift for d in differences]
    effect = found(differences, options={"equivalence_margin": margin})
    if np.ptp(differences) < 1e-6:
        return
    differs = stats.ttest_1samp(effect.differences, 0).pvalue < ALPHA
    bound = margin * np.mean(BASE)
    within = all(
        stats.ttest_1samp(effect.differences, side * bound, alternative=way).pvalue < 0.05
        for side, way in ((-1, "greater"), (1, "less"))
    )
    large = abs(np.mean(effect.differences)) >= np.std(BASE, ddof=1) * math.sqrt(2 / 5)
    expected = {
        (True, True): "better" if effect.mean < 0 else "worse",
        (True, False): "below the noise",
    }.get((differs, large), "equivalent" if within else "inconclusive")
    assert effect.outcome == expected
    assert ("that is smaller than the margin" in effect.sentence) == (differs and large and within)


def test_margins_are_the_studys():
    differences = (0.01, -0.01, 0.002, -0.005, 0.003)
    assert found(differences, options={"equivalence_margin": 0.001}).outcome == "inconclusive"


@pytest.mark.slow
@given(st.lists(st.floats(1.2, 14), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_several_variants_share_the_level_as_holm_says(t_values, order):
    """By definition: in order of p, each at alpha / (those left); whatever the order of the variants."""
    shape = np.array([-1.0, 0.5, 0.3, -0.4, 0.6])
    shape /= shape.std(ddof=1) / math.sqrt(5)
    base = [3.5] * 5
    order.shuffle(t_values)
    names = [f"v{i}" for i in range(len(t_values))]
    all_losses = {n: 3.5 - 0.01 * (t + shape) for n, t in zip(names, t_values, strict=True)}
    got = effects(replicates(old=base, **all_losses), study(*names), "old")
    assert [e.variant for e in got] == names
    p_values = sorted((2 * stats.t.sf(t, 4), n) for t, n in zip(t_values, names, strict=True))
    if any(abs(p * (len(names) - i) - ALPHA) < 1e-9 for i, (p, _) in enumerate(p_values)):
        return
    steps = (p < ALPHA / (len(names) - i) for i, (p, _) in enumerate(p_values))
    rejected = len([*itertools.takewhile(bool, steps)])
    assert {e.variant for e in got if e.outcome == "better"} == {n for _, n in p_values[:rejected]}
    for effect in got:
        assert (effect.outcome == "better") == (effect.holm_p_value < ALPHA)


def test_holm_is_named_where_it_decides():
    shape = np.array([-1.0, 0.5, 0.3, -0.4, 0.6]) * 0.01
    t = shape.std(ddof=1) / math.sqrt(5)
    losses = dict.fromkeys(("a", "b", "c"), 3.5 - 3.0 * t + shape)  # p = 0.04 for each
    for effect in effects(
        replicates(old=[3.5] * 5, **losses), study("a", "b", "c", equivalence_margin=0.001), "old"
    ):
        assert effect.p_value < ALPHA < effect.holm_p_value
        assert effect.outcome == "inconclusive"
        assert "not with Holm's correction" in effect.sentence


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"edges": {"new"}}, "the best learning rate of new is at the edge of its grid"),
        ({"edges": {"old"}}, "the best learning rate of old is at the edge of its grid"),
        (lost("new", 5), "5 runs of new failed"),
        (lost("old", 5), "5 runs of old failed"),
        ({"learnt": {"new": 3.2}}, "new learnt no more than a bigram model (3.20 nats per token)"),
    ],
)
def test_reservations_conclude_nothing_and_say_why(more, reason):
    effect = found((-0.21, -0.22, -0.20, -0.23, -0.20), **more)
    assert effect.outcome == "inconclusive"
    assert reason in effect.caveats
    assert effect.sentence.startswith("The comparison of new with old is inconclusive because ")
    assert reason in effect.sentence
    # What is inconclusive has no number to be read.
    assert "nats per token lower" not in effect.sentence


def test_a_variant_that_tuning_found_unlearnt_is_said_to_be_so_without_a_pair():
    """Its runs ended there: no word of missing seeds."""
    for compared in ({"old": BASE}, {}):
        [effect] = effects(
            replicates(**compared), study("new"), "old", learnt={"new": 3.2}, unlearnt={"new": 3.4}
        )
        assert effect.caveats == ("new learnt no more than a bigram model (3.20 nats per token)",)
        assert is_unlearnt(effect)


@pytest.mark.parametrize("who", ["new", "old"])
def test_of_given_rates_which_variant_bears_them_is_an_outcome_without_numbers(who):
    base = BASE
    runs = [
        replace(r, best=replace(r.best, diverged=r.variant == who))
        for r in replicates(
            old=[b + 2 * (who == "old") for b in base], new=[b + 2 * (who == "new") for b in base]
        )
    ]
    learnt = {"new": 4.0, "old": 4.0}
    [given] = effects(runs, study("new", tune_lr=False), "old", learnt=learnt)
    assert given.outcome == ("worse" if who == "new" else "better")
    assert given.sentence == (
        f"new is {given.outcome} than old: {who} diverged in all 5 runs at the learning rate that was given, and the "
        "other in none."
    )
    assert is_unlearnt(given)
    assert (given.has_numbers, given.caveats) == (False, ())
    [tuned] = effects(runs, study("new"), "old", learnt=learnt)
    assert (tuned.outcome, tuned.diverged) == ("inconclusive", "")
    # Where the other learnt nothing, or one of its runs diverged, too, nothing is known.
    [stuck] = effects(runs, study("new", tune_lr=False), "old", learnt={"new": 2.0, "old": 2.0})
    assert stuck.outcome == "inconclusive"
    one_more = [replace(r, best=replace(r.best, diverged=True)) if r.seed == 0 else r for r in runs]
    [mixed] = effects(one_more, study("new", tune_lr=False), "old", learnt=learnt)
    assert mixed.outcome == "inconclusive"


def test_few_failures_cost_their_seeds_alone():
    runs = [run("new", 9, 3.0, "no memory")]
    options = {"seeds": 9}
    assert (
        found((-0.21, -0.22, -0.20, -0.23, -0.20), runs=runs, options=options).outcome == "better"
    )


@pytest.mark.parametrize(
    ("failed", "outcome"),
    [
        ([("new", 10**7), ("old", 10**7)], "better"),  # of the seeds that tune
        ([("new", 7)], "better"),  # of one compared pair, four others being there
        ([("new", 7), ("old", 8), ("new", 9), ("new", 0)], "inconclusive"),
    ],
)
def test_of_an_early_decision_failures_count_beside_the_pairs_that_were_compared(failed, outcome):
    seeds, looks = (3, 4, 5, 6), Looks(10, 10)
    both = {"old": 3.5, "new": 3.2}
    pairs = [
        Replicate(n, s, loss + s / 100, 1e-3, run(n, s, loss))
        for n, loss in both.items()
        for s in seeds
    ]
    [effect] = effects(
        pairs,
        study("new", seeds=10),
        "old",
        runs=[run(name, seed, math.nan, "no memory") for name, seed in failed],
        decisions={"new": Decision(4, 0.001, "superior")},
        looks=looks,
    )
    assert effect.outcome == outcome


def filled(then, later, outcome):
    """The effect of pairs that decided, and of those that were trained after that."""
    differences = [*then, *later]
    return found(
        differences,
        base=[3.5 + 0.01 * (i % 3) for i in range(len(differences))],
        options={"seeds": 10},
        decisions={"new": Decision(len(then), 0.01, outcome)},
        looks=Looks(10, 10),
    )


def test_pairs_after_a_decision_move_the_interval_and_not_the_outcome():
    then = (-0.021, -0.02, -0.019, -0.022)
    as_before = filled(then, then, "superior")
    assert as_before.outcome == "better"
    assert "after the decision" not in as_before.sentence
    moved = filled(then, (0.03, -0.04, 0.02, -0.02, 0.03), "superior")
    assert moved.outcome == "better"
    assert moved.mean < 0 < moved.interval.high
    assert moved.sentence.endswith(
        "; pairs that were trained after the decision have moved the interval."
    )
    alike = filled((0.001, -0.001, 0.002, 0.0), (0.06, -0.05, 0.07, 0.05), "equivalent")
    assert alike.outcome == "equivalent"
    assert alike.equivalence.high > alike.margin
    assert "lay within ±" in alike.sentence
    assert "when this was decided; pairs that were trained after" in alike.sentence


def test_pairs_that_turn_what_was_decided_leave_it_open():
    turned = filled((-0.02, -0.02, -0.02, -0.02), (0.05, 0.04, 0.06, 0.05), "superior")
    assert turned.outcome == "inconclusive"
    assert turned.caveats == ("the first 4 pairs, which decided, say the opposite of all 8",)


def test_one_variant_alone_is_not_corrected_for_several():
    effect = found((-0.02, -0.021, -0.019, -0.02, -0.02), decisions={}, looks=Looks(10, 10))
    assert effect.outcome == "inconclusive"
    assert effect.interval.high < 0
    assert "Holm" not in effect.sentence


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ((3.5,), (3.4,), "only one seed has both"),
        ((3.5, math.nan), (math.nan, 3.4), "no seed has both"),
        ((3.5, 3.4), (), "no seed has both"),
        ((), (), "no seed has both"),
    ],
)
def test_too_few_pairs_have_endless_intervals(old, new, reason):
    [effect] = effects(replicates(old=old, new=new), study("new"), "old")
    assert effect.outcome == "inconclusive"
    assert effect.caveats == (reason,)
    assert (effect.interval.low, effect.interval.high) == (-math.inf, math.inf)
    assert (effect.p_value, effect.holm_p_value) == (1.0, 1.0)
    assert reason in effect.sentence
    assert "inf" not in effect.sentence
    assert "nan" not in effect.sentence
