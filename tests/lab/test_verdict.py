"""Outcomes against the looks and a table of cases, estimates against simulations, and the sentences word by word."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from archwright.lab.procedure.estimate import mean_beyond, shrunken
from archwright.lab.procedure.looks import Decision, Looks
from archwright.lab.procedure.statistics import SharedError, half_width
from archwright.lab.procedure.verdict import effects, is_unlearnt, margin_of, verdict
from archwright.lab.results import Replicate, RunResult
from archwright.spec.study_spec import StudySpec
from tests.lab import made_results as made

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
    [effect] = judged(replicates(old=base, new=losses), study("new", **(options or {})), **more)
    return effect


def judged(pairs, asked, **more):
    """The effects of what one look at all pairs decides, unless decisions are given."""
    return effects(pairs, asked, "old", **{**made.judged(pairs, asked, "old"), **more})


def lost(name, number):
    """So many runs of a study with five more seeds came to no end."""
    runs = [run(name, 5 + i, 3.0, "no memory") for i in range(number)]
    return {"options": {"seeds": 10}, "runs": runs}


def test_numbers_are_those_of_a_paired_t_test_at_the_levels_of_the_looks():
    """A fifth of the error is kept back for pairs that are added."""
    rng = np.random.default_rng(0)
    base, new = rng.normal(3.5, 0.02, 7), rng.normal(3.4, 0.02, 7)
    effect = found(new - base, base=base)
    expected = stats.ttest_rel(new, base)
    for interval, level in ((effect.interval, 0.96), (effect.equivalence, 0.92)):
        ends = tuple(expected.confidence_interval(level))
        assert (interval.low, interval.high) == pytest.approx(ends, rel=1e-3)
    assert (effect.interval.level, effect.equivalence.level) == (0.95, 0.90)
    assert effect.mean == pytest.approx(new.mean() - base.mean())
    assert effect.margin == pytest.approx(0.01 * base.mean())
    assert effect.margin_share == pytest.approx(0.01)
    assert effect.differences == pytest.approx(new - base)
    assert effect.bits_per_byte == pytest.approx(effect.estimate / 2.5)
    assert effect.share == pytest.approx(effect.estimate / base.mean())


def test_seeds_are_paired_by_number_not_by_order():
    both = replicates(old=(3.0, math.nan, 3.4, 3.2), new=(2.9, 2.0, 3.3, math.nan))
    [effect] = judged(both[::-1], study("new"))
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
            "new is better than old, but by less than the margin: the loss of new is 0.02",
        ),
        (
            (0.01, -0.01, 0.002, -0.005, 0.003),
            "equivalent",
            "; the 90 % interval lies within the margin of ±0.035 nats per token (1 % of the loss).",
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


@given(
    st.lists(st.floats(-0.2, 0.2), min_size=5, max_size=5),
    st.floats(-0.2, 0.2),
    st.floats(0.001, 0.05),
)
def test_a_small_difference_is_one_whose_interval_is_between_0_and_the_margin(
    differences, shift, margin
):
    effect = found(
        [d + shift for d in differences], options={"margin": f"{100 * margin:.6g}% of the loss"}
    )
    ends = sorted((abs(effect.interval.low), abs(effect.interval.high)))
    leaves_out = effect.interval.low > 0 or effect.interval.high < 0
    assert effect.within_margin == (leaves_out and ends[1] < margin * np.mean(BASE))
    said = ", but by less than the margin" in effect.sentence
    assert said == (effect.within_margin and effect.outcome in ("better", "worse"))


def test_a_margin_of_compute_is_the_slope_times_its_logarithm():
    asked = SimpleNamespace(margin_of_compute=0.1, margin_of_loss=None)
    assert margin_of(asked, 3.5, 0.2) == pytest.approx(0.2 * math.log(1.1))
    assert math.isnan(margin_of(asked, 3.5, None))
    effect = found((-0.021, -0.02, -0.02, -0.021, -0.02), slope=0.2)
    assert effect.margin_compute == pytest.approx(math.exp(0.035 / 0.2) - 1)
    assert (
        "the margin is ±0.035 nats per token (1 % of the loss and 19 % of compute)"
        in effect.sentence
    )


@pytest.mark.parametrize("truth", [-0.3, 0.0, 0.2, 1.0])
def test_the_mean_beyond_a_bound_is_that_of_draws(truth):
    drawn = np.random.default_rng(0).normal(truth, 0.4, 400_000)
    beyond = drawn[abs(drawn) > 0.5].mean()
    assert mean_beyond(0.5, truth, 0.4) == pytest.approx(beyond, abs=0.01)


def overstated(truth, draws=400):
    """Mean of what was found over the truth, naive and shrunken: normal pairs of a deviation of 0.63, three looks."""
    looks = SimpleNamespace(numbers=(5, 7, 10), levels=(0.007, 0.013, 0.034))
    rng, shared, sums = np.random.default_rng(1), SharedError(placing=0.15), []
    for _ in range(draws):
        d = rng.normal(truth + rng.normal(0, 0.15), 0.63, 10)
        for n, level in zip(looks.numbers, looks.levels, strict=True):
            error = float(d[:n].std(ddof=1)) / math.sqrt(n)
            if d[:n].mean() > half_width(error, n, level, shared):
                estimate = shrunken(d[:n].tolist(), Decision(n, level, "superior"), shared)
                sums.append((float(d[:n].mean()), estimate))
                break
    return np.mean(sums, axis=0) / truth


def test_shrinking_takes_most_of_the_winners_curse():
    naive, estimate = overstated(0.5)
    assert 1.4 < naive < 1.7
    assert estimate < 1 + (naive - 1) / 2
    naive, estimate = overstated(1.0)  # nearly all are found
    assert 0.85 < estimate < naive < 1.15


def test_far_beyond_the_bound_nothing_is_shrunken_and_pairs_after_the_decision_count():
    shared, decision = SharedError(), Decision(4, 0.01, "superior")
    clear = [0.5, 0.51, 0.49, 0.5]
    assert shrunken(clear, decision, shared) == pytest.approx(0.5, abs=1e-4)
    close = [0.03, 0.05, 0.04, 0.05]
    tight = half_width(float(np.std(close, ddof=1)) / 2, 4, 0.01, shared)
    assert 0.5 * tight < np.mean(close) < 1.6 * tight
    first = shrunken(close, decision, shared)
    later = shrunken([*close, *close], decision, shared)
    assert 0 < first < later < np.mean(close)
    assert shrunken([-d for d in close], decision, shared) == pytest.approx(-first)


def test_margins_are_the_studys():
    differences = (0.01, -0.01, 0.002, -0.005, 0.003)
    assert found(differences, options={"margin": "0.1% of the loss"}).outcome == "inconclusive"


def test_holm_is_named_where_it_decides():
    shape = np.array([-1.0, 0.5, 0.3, -0.4, 0.6]) * 0.01
    t = shape.std(ddof=1) / math.sqrt(5)
    losses = dict.fromkeys(("a", "b", "c"), 3.5 - 3.2 * t + shape)  # p = 0.033 for each
    for effect in judged(
        replicates(old=[3.5] * 5, **losses), study("a", "b", "c", margin="0.1% of the loss")
    ):
        assert effect.interval.high < 0
        assert effect.outcome == "inconclusive"
        assert "not with Holm's correction" in effect.sentence


def test_of_few_variants_the_verdict_has_the_sentences_and_of_many_groups():
    rng = np.random.default_rng(0)
    names = ("a", "b", "c", "d")
    losses = {n: 3.5 + 0.2 * i + rng.normal(0, 0.01, 5) for i, n in enumerate(names)}
    for number in (1, 3, 4):
        some = dict([*losses.items()][:number])
        got = judged(replicates(old=[3.5] * 5, **some), study(*some))
        spiked = ["2 of 6 runs of old spiked at lr 0.059; all were run again at 0.03"]
        said = verdict(got, "old", spiked)
        assert said.endswith(f" {spiked[0]}.")
        assert all((effect.sentence in said) == (number < 4) for effect in got)
    assert said.startswith("Against old in nats per token, b (+0.20")


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
        [effect] = judged(
            replicates(**compared), study("new"), learnt={"new": 3.2}, unlearnt={"new": 3.4}
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
    [given] = judged(runs, study("new", tune_lr=False), learnt=learnt)
    assert given.outcome == ("worse" if who == "new" else "better")
    assert given.sentence == (
        f"new is {given.outcome} than old: {who} diverged in all 5 runs at the learning rate that was given, and the "
        "other in none."
    )
    assert is_unlearnt(given)
    assert (given.has_numbers, given.caveats) == (False, ())
    [tuned] = judged(runs, study("new"), learnt=learnt)
    assert (tuned.outcome, tuned.diverged) == ("inconclusive", "")
    # Where the other learnt nothing, or one of its runs diverged, too, nothing is known.
    [stuck] = judged(runs, study("new", tune_lr=False), learnt={"new": 2.0, "old": 2.0})
    assert stuck.outcome == "inconclusive"
    one_more = [replace(r, best=replace(r.best, diverged=True)) if r.seed == 0 else r for r in runs]
    [mixed] = judged(one_more, study("new", tune_lr=False), learnt=learnt)
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
    assert "lay within the margin of ±" in alike.sentence
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
    [effect] = judged(replicates(old=old, new=new), study("new"))
    assert effect.outcome == "inconclusive"
    assert effect.caveats == (reason,)
    assert (effect.interval.low, effect.interval.high) == (-math.inf, math.inf)
    assert reason in effect.sentence
    assert "inf" not in effect.sentence
    assert "nan" not in effect.sentence
