"""The window against a plain simulation of its sentence, the vertex against polyfit, and what both promise."""

import math
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archwright.lab.procedure.constants import (
    FINER,
    MISPLACED,
    MOVES,
    PLACING,
    RISE,
    SLIDES,
    USUAL_SPREAD,
)
from archwright.lab.procedure.sweep import (
    Bottom,
    Sweep,
    around_vertex,
    bottom,
    lowest,
    placing_errors,
    plan_sweep,
    pooled_sweep,
    replicate,
    tuned,
    vertex,
)
from archwright.lab.results import RunResult

LOSSES = st.floats(0.5, 20.0)


def valley(centre: float, width: float = 0.1):
    """Losses with their lowest point at k = centre."""
    return lambda seed, k: 3.0 + width * (k - centre) ** 2


def carry_out(loss_of, seeds=(0, 1, 2), choose=None, **options):
    """Do the wanted runs one after another, in any order among those wanted; return all that ran."""
    losses = {}
    while wanted := plan_sweep(losses, seeds, **options).wanted:
        seed, k = choose(wanted) if choose else wanted[0]
        assert (seed, k) not in losses
        losses[seed, k] = loss_of(seed, k)
        assert len(losses) < 1000
    return plan_sweep(losses, seeds, **options), losses


def test_the_first_seed_comes_first_and_alone():
    assert plan_sweep({}, [7, 8]) == Sweep(range(-1, 2), [(7, -1), (7, 0), (7, 1)], [], False)
    done = {(7, -1): 3.1, (7, 0): 3.0}
    assert plan_sweep(done, [7, 8]).wanted == [(7, 1)]
    done[7, 1] = 3.1
    assert plan_sweep(done, [7, 8]).wanted == [(8, -1), (8, 0), (8, 1)]
    assert plan_sweep(done, [7, 8]).seeds == [7]


@pytest.mark.parametrize(
    ("grid", "first"), [(3, range(-1, 2)), (4, range(-2, 2)), (5, range(-2, 3))]
)
def test_grids_start_around_the_start(grid, first):
    assert plan_sweep({}, [0], grid).window == first


@pytest.mark.parametrize("centre", range(-9, 10))
@pytest.mark.parametrize("grid", [3, 4, 5])
def test_the_window_goes_to_the_valley_as_far_as_it_may(centre, grid):
    sweep, losses = carry_out(valley(centre), grid=grid)
    first = range(-(grid // 2), grid - grid // 2)
    inside = (first[1], first[-2])  # centres that move nothing
    needed = max(inside[0] - centre, centre - inside[1], 0)
    moves = min(needed, MOVES + SLIDES) * (1 if centre > 0 else -1)
    assert sweep.window == range(first.start + moves, first.stop + moves)
    assert sweep.at_boundary == (needed > MOVES + SLIDES)
    # The first seed alone goes further than the window is wide; the others run only what counts.
    slides = max(0, min(needed - MOVES, SLIDES))
    assert sum(seed == 0 for seed, _ in losses) == grid + abs(moves)
    assert sum(seed == 1 for seed, _ in losses) == grid + slides


def test_the_mean_slides_the_window_for_all():
    def loss(seed, k):
        return valley(0 if seed == 0 else 1.6)(seed, k)

    sweep, losses = carry_out(loss)
    assert (sweep.window, sweep.at_boundary, sweep.seeds) == (range(0, 3), False, [0, 1, 2])
    assert {(0, 2), (1, 2), (2, 2)} <= losses.keys()
    still, fewer = carry_out(loss, may_shift=False)
    assert (still.window, still.at_boundary) == (range(-1, 2), True)
    assert len(fewer) == 9
    # With runs of a slide that has begun, the window that is complete still counts.
    started = dict(fewer) | {(0, 2): 3.0}
    assert plan_sweep(started, [0, 1, 2], may_shift=False) == still


def test_a_failed_seed_does_not_count():
    def loss(seed, k):
        return math.nan if (seed, k) == (1, 1) else valley(0)(seed, k)

    sweep, losses = carry_out(loss)
    assert (sweep.seeds, sweep.window, sweep.at_boundary) == ([0, 2], range(-1, 2), False)
    assert len(losses) == 9
    early = {(0, k): valley(0)(0, k) for k in (-1, 0, 1)} | {(1, -1): math.nan}
    assert (1, 0) not in plan_sweep(early, [0, 1, 2]).wanted


def test_the_next_seed_places_where_the_first_failed():
    def loss(seed, k):
        return math.nan if seed == 0 and k >= 1 else valley(3)(seed, k)

    sweep, _ = carry_out(loss)
    assert (sweep.seeds, sweep.window) == ([1, 2], range(2, 5))


def test_all_failed_is_complete_without_seeds():
    sweep, losses = carry_out(lambda seed, k: math.nan)
    assert (sweep.seeds, sweep.window, sweep.at_boundary) == ([], range(-1, 2), False)
    assert len(losses) == 3  # one run of each seed told enough


def steep(centre, rise=0.8):
    """Losses that rise by more than a grid of whole steps resolves."""
    return lambda seed, k: 3.0 + rise * abs(k - centre)


@pytest.mark.parametrize("centre", [0.0, 0.3, -0.2, 1.2, -3.0])
def test_a_narrow_valley_gets_half_steps(centre):
    sweep, losses = carry_out(steep(centre), refine=True)
    steps = {b - a for a, b in zip(sweep.window, sweep.window[1:], strict=False)}
    assert (steps, len(sweep.window), sweep.at_boundary) == ({0.5}, 3, False)
    best = min(sweep.window, key=lambda k: steep(centre)(0, k))
    assert best == sweep.window[1]
    assert abs(best - centre) <= 0.25
    assert {k for seed, k in losses if seed == 1} == set(sweep.window)
    coarse, _ = carry_out(steep(centre))
    assert isinstance(coarse.window, range)


def test_a_wide_valley_keeps_whole_steps():
    wide, losses = carry_out(valley(1), refine=True)
    assert (wide, losses) == carry_out(valley(1))
    beside = {(0, k): 3.0 * (1 + RISE) - 1e-9 for k in (-1, 1)} | {(0, 0): 3.0}
    assert plan_sweep(beside, [0], refine=True).window == range(-1, 2)
    for steep_side in (-1, 1):
        one_side = beside | {(0, steep_side): 3.0 * (1 + RISE) + 1e-9}
        assert plan_sweep(one_side, [0], refine=True).window == (-0.5, 0.0, 0.5)


def test_half_steps_slide_for_all_seeds_too():
    def loss(seed, k):
        return steep(0.0 if seed == 0 else 0.9)(seed, k)

    sweep, _ = carry_out(loss, refine=True)
    assert (sweep.window, sweep.at_boundary) == ((0.5, 1.0, 1.5), False) or sweep.window == (
        0.0,
        0.5,
        1.0,
    )
    assert sweep.window[1] == pytest.approx(0.75, abs=0.25)


@given(
    table=st.dictionaries(st.tuples(st.integers(0, 3), st.integers(-24, 24)), LOSSES, max_size=100),
    order=st.randoms(use_true_random=False),
)
def test_refined_windows_too_are_of_one_size_in_any_order(table, order: random.Random):
    def loss(seed, k):
        return table.get((seed, int(2 * k)), 3.0 + 0.01 * ((7 * seed + int(6 * k)) % 11))

    options = {"seeds": [3, 0, 1, 2], "refine": True}
    sweep, losses = carry_out(loss, **options)
    shuffled, _ = carry_out(loss, choose=order.choice, **options)
    assert shuffled == sweep
    assert len(sweep.window) == 3
    assert all((s, k) in losses for s in options["seeds"] for k in sweep.window)


@pytest.mark.slow
@given(
    table=st.dictionaries(
        st.tuples(st.integers(0, 3), st.integers(-12, 12)), LOSSES | st.just(math.nan), max_size=100
    ),
    grid=st.integers(3, 5),
    order=st.randoms(use_true_random=False),
)
def test_any_order_of_any_losses_ends_alike(table, grid, order: random.Random):
    def loss(seed, k):
        return table.get((seed, k), 3.0 + 0.01 * ((7 * seed + 3 * k) % 11))

    options = {"seeds": [3, 0, 1, 2], "grid": grid}
    sweep, losses = carry_out(loss, **options)
    shuffled, _ = carry_out(loss, choose=order.choice, **options)
    assert shuffled == sweep
    assert len(sweep.window) == grid
    assert abs(sweep.window.start + grid // 2) <= MOVES + SLIDES
    assert all(math.isfinite(losses[s, k]) for s in sweep.seeds for k in sweep.window)
    left_out = set(options["seeds"]) - {*sweep.seeds}
    assert all(any(math.isnan(losses.get((s, k), 0)) for k in sweep.window) for s in left_out)
    # Other runs, which nobody wanted, change nothing.
    more = {(s, k): 0.1 for s in range(4) for k in range(-40, -20)}
    assert plan_sweep(losses | more, **options) == sweep


@pytest.mark.slow
@given(table=st.lists(LOSSES, min_size=60, max_size=60), factor=st.sampled_from([0.25, 2.0, 64.0]))
def test_the_window_knows_no_unit(table, factor):
    def loss(seed, k, scale=1.0):
        return scale * table[(seed * 20 + k) % 60]

    plain, _ = carry_out(loss)
    scaled, _ = carry_out(lambda seed, k: loss(seed, k, factor))
    assert plain == scaled


def test_the_vertex_of_a_parabola_is_found_exactly():
    for centre in (-0.49, -0.2, 0.0, 0.3, 0.5):
        lrs = [1e-3 * 3.0**k for k in range(-2, 3)]
        losses = [3.0 + 0.02 * (k - centre) ** 2 for k in range(-2, 3)]
        found = tuned(losses, lrs)
        assert found.loss == pytest.approx(3.0, abs=1e-12)
        assert found.lr == pytest.approx(1e-3 * 3.0**centre, rel=1e-9)
        assert not found.at_boundary


@given(
    best=st.floats(1, 10),
    rises=st.tuples(st.floats(1e-4, 0.04), st.floats(1e-4, 0.04)),
    gaps=st.tuples(st.floats(0.3, 2.0), st.floats(0.3, 2.0)),
)
def test_the_vertex_is_that_of_polyfit(best, rises, gaps):
    logs = np.array([-gaps[0], 0.0, gaps[1]])
    losses = [best + rises[0], best, best + rises[1]]
    c, s, y = np.polyfit(logs, losses, 2)
    found = tuned(losses, [*np.exp(logs - 6)])
    assert found.loss == pytest.approx(y - s * s / (4 * c), abs=1e-9)
    assert math.log(found.lr) + 6 == pytest.approx(-s / (2 * c), abs=1e-7)


def test_an_unstable_neighbour_pulls_no_more_than_a_rise():
    lrs = [1.0, 2.0, 4.0]
    wild, capped = tuned([3.1, 3.0, 6.0], lrs), tuned([3.1, 3.0, 3.0 * (1 + RISE)], lrs)
    assert wild == pytest.approx(capped)
    assert 3.0 - wild.loss < 0.002
    assert 3.0 - tuned([3.0, 3.0, 60.0], lrs).loss == pytest.approx(3.0 * RISE / 8)


@given(st.lists(LOSSES, min_size=3, max_size=7), st.floats(1.4, 10), st.data())
def test_what_every_tuned_loss_promises(losses, ratio, data):
    lrs = [1e-3 * ratio**k for k in range(len(losses))]
    found, best = tuned(losses, lrs), lowest(losses)
    assert (1 - RISE / 8) * losses[best] - 1e-12 <= found.loss <= min(losses)
    assert found.at_boundary == (best in (0, len(losses) - 1))
    if found.at_boundary:
        assert (found.loss, found.lr) == (losses[best], lrs[best])
    else:
        half = math.sqrt(ratio) * (1 + 1e-12)
        assert lrs[best] / half <= found.lr <= lrs[best] * half
    factor = data.draw(st.sampled_from([0.5, 4.0]))
    scaled = tuned([factor * loss for loss in losses], lrs)
    assert scaled.loss == pytest.approx(factor * found.loss, rel=1e-12)
    assert scaled.lr == pytest.approx(found.lr, rel=1e-9)


def test_ties_go_to_the_middle():
    assert tuned([3.0, 3.0, 3.0], [1.0, 2.0, 4.0]) == (3.0, 2.0, False)
    assert tuned([3.0, 3.0, 3.1], [1.0, 2.0, 4.0]).at_boundary is False
    assert tuned([3.0, 3.1, 3.0], [1.0, 2.0, 4.0]) == (3.0, 1.0, True)


def test_a_replicate_is_a_sweep_or_its_only_run():
    def run(lr, loss):
        return RunResult("key", "a", 4, lr, loss, bits_per_byte=1.0, initial_loss=5.5)

    runs = [run(4.0, 3.1), run(1.0, 3.3), run(2.0, 3.0)]
    found = replicate(runs)
    assert (found.loss, found.lr, found.at_boundary) == tuned([3.3, 3.0, 3.1], [1.0, 2.0, 4.0])
    assert (found.variant, found.seed, found.best) == ("a", 4, runs[2])
    alone = replicate(runs[:1])
    assert (alone.loss, alone.lr, alone.at_boundary, alone.best) == (3.1, 4.0, False, runs[0])


CUBIC = Sweep((-0.5, 0.0, 0.5), [], [0, 1], at_boundary=False)


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_error_of_placing_is_about_a_cubic_term_that_three_losses_do_not_show(
    sign: int,
) -> None:
    """f(x) = A (x² + sign x (x² - 1) / 2) is A x² at -1, 0 and 1; its lowest point lies 0.06 A deeper."""
    rise, grid = 0.08, np.linspace(-1, 1, 20_001)
    curve = lambda x: 4.0 + rise * (x**2 + sign * x * (x**2 - 1) / 2)  # noqa: E731
    losses = {(s, k): float(curve(2 * k)) for k in CUBIC.window for s in (0, 1)}
    assert vertex(losses, CUBIC) == 0.0
    excess = 4.0 - float(curve(grid).min())
    found = placing_errors({"a": bottom(losses, CUBIC)})["a"]
    assert excess == pytest.approx(0.06 * rise, rel=0.07)
    usual = MISPLACED * rise * (USUAL_SPREAD / 0.5) ** 2 / 2 / 2
    assert found == pytest.approx(PLACING * rise + usual)
    assert found > excess


@pytest.mark.parametrize("source", ["noise", "bottoms"])
def test_the_excess_of_a_vertex_is_that_of_drawn_seeds(source: str) -> None:
    """In the mean over draws, whether the losses of seeds or their bottoms differ."""
    rng, rise, seeds = np.random.default_rng(0), 0.08, (0, 1)
    stated, true = [], []
    for _ in range(3000):
        at = rng.normal(0, 0.08, 2) if source == "bottoms" else np.zeros(2)
        noise = rng.normal(0, 0.015 if source == "noise" else 0.0, (2, 3))
        losses = {
            (s, k): 4.0 + rise * (2 * (k - at[s])) ** 2 + noise[s, i]
            for s in seeds
            for i, k in enumerate(CUBIC.window)
        }
        if lowest([losses[0, k] + losses[1, k] for k in CUBIC.window]) == 1:
            stated.append(bottom(losses, CUBIC).excess)
            true.append(rise * (2 * vertex(losses, CUBIC)) ** 2)
    assert np.mean(stated) == pytest.approx(np.mean(true), rel=0.12)


def test_the_excess_is_pooled_over_variants_and_with_one_usual_seed_more() -> None:
    bottoms = {"a": Bottom(0.08, 0.5, 2, 0.002), "b": Bottom(0.02, 1.0, 3, 0.005)}
    usual = {"a": 0.08 * (USUAL_SPREAD / 0.5) ** 2 / 2, "b": 0.02 * USUAL_SPREAD**2 / 3}
    found = placing_errors(bottoms)
    for name, one in bottoms.items():
        excess = (usual[name] + 0.002 + 2 * 0.005) / (1 + 1 + 2)
        assert found[name] == pytest.approx(PLACING * one.rise + MISPLACED * excess)
    single = placing_errors({"a": Bottom(0.08, 0.5, 1, 0.0)})["a"]
    assert single == pytest.approx(PLACING * 0.08 + MISPLACED * 2 * usual["a"])


def test_a_cliff_counts_as_a_steep_side_and_an_end_as_nothing() -> None:
    losses = {(0, -1): 4.1, (0, 0): 4.0, (0, 1): 9.0, (1, -1): 4.1, (1, 0): 4.0, (1, 1): 4.2}
    sweep = Sweep((-1, 0, 1), [], [0, 1], at_boundary=False)
    found = bottom(losses, sweep)
    assert found.rise == pytest.approx((0.1 + RISE * 4.0) / 2)
    assert found.excess == pytest.approx(0.0)
    losses[0, 1] = losses[1, 1] = 3.9
    assert bottom(losses, sweep).rise == 0.0
    assert placing_errors({"a": bottom(losses, sweep)}) == {"a": 0.0}


@pytest.mark.parametrize(
    ("loss_of", "window"),
    [
        (lambda k: 5.6, (-5, -3)),  # flat: rates are too high, as far as the window may go
        (lambda k: 5.6 + 0.01 * (k + 1) ** 2, (-5, -3)),
        (lambda k: 5.6 + 0.5 * (k - 1) ** 2, (0.5, 1.5)),  # lower rates are worse: too few steps
        (lambda k: 5.6 + 0.5 * (k - 3) ** 2, (2.5, 3.5)),
    ],
)
def test_a_plateau_is_left_towards_lower_rates_unless_they_are_clearly_worse(
    loss_of: Callable[[float], float], window: tuple[int, int]
) -> None:
    losses: dict[tuple[int, float], float] = {}
    while wanted := pooled_sweep(losses, (0,), may_shift=False, plateau=5.5).wanted:
        losses.update({(seed, k): loss_of(k) for seed, k in wanted})
    found = pooled_sweep(losses, (0,), may_shift=False, plateau=5.5).window
    assert (found[0], found[-1]) == window


def pool(
    loss_of: Callable[[int, float], float], **options: Any
) -> tuple[Sweep, dict[tuple[int, float], float]]:
    """Let two seeds tune one variant."""
    losses: dict[tuple[int, float], float] = {}
    while wanted := pooled_sweep(losses, (0, 1), **options).wanted:
        losses.update({(seed, k): loss_of(seed, k) for seed, k in wanted})
    return pooled_sweep(losses, (0, 1), **options), losses


def parabola(at: float, rise: float) -> Callable[[int, float], float]:
    return lambda seed, k: 4.0 * (1 + rise * (k - at) ** 2)


HALVES = (-0.25, 0.25, 0.75)
"""Where a baseline ended with half steps."""


@pytest.mark.parametrize(
    ("at", "runs", "window"),
    [
        (0.3, 6, (-0.25, 0.25, 0.75)),
        (0.8, 7, (0.25, 0.75, 1.25)),  # half a step first
        (-0.4, 7, (-0.75, -0.25, 0.25)),
        # Then whole ones, and half steps again around what they find.
        (2.2, 11, (1.75, 2.25, 2.75)),
        (-2.8, 12, (-3.25, -2.75, -2.25)),
    ],
)
def test_a_variant_starts_where_the_baseline_ended_and_strides_from_there(
    at: float, runs: int, window: tuple[float, ...]
) -> None:
    found, losses = pool(parabola(at, 0.06), start=HALVES)
    assert tuple(found.window) == window
    assert len(losses) == runs
    assert not found.at_boundary


def test_only_steep_valleys_get_half_steps_and_none_finer_ones() -> None:
    flat, _ = pool(parabola(0.0, 0.9 * FINER))
    steep, losses = pool(parabola(0.0, 1.1 * FINER))
    steepest, _ = pool(parabola(0.25, 0.3), start=HALVES)
    assert tuple(flat.window) == (-1, 0, 1)
    assert tuple(steep.window) == (-0.5, 0.0, 0.5)
    assert tuple(steepest.window) == HALVES
    # The second seed runs the last window alone.
    assert {k for seed, k in losses if seed == 1} == {*steep.window}
    assert flat.seeds == steep.seeds == [0, 1]


def test_a_variant_starts_around_the_vertex_with_as_many_rates_as_far_apart() -> None:
    found, losses = pool(parabola(0.3, 0.06))
    start = around_vertex(losses, found)
    assert [b - a for a, b in pairwise(start)] == [0.5, 0.5]
    assert start[1] == pytest.approx(0.3, abs=0.03)
    assert all((64 * k).is_integer() for k in start)


@given(
    table=st.dictionaries(st.tuples(st.integers(0, 1), st.integers(-40, 40)), LOSSES, max_size=80),
    step=st.sampled_from([0.5, 1.0]),
    grid=st.integers(3, 5),
)
def test_every_variant_ends_with_equally_many_rates_wherever_it_starts(
    table: dict[tuple[int, int], float], step: float, grid: int
) -> None:
    def loss(seed: int, k: float) -> float:
        return table.get((seed, int(4 * k)), 3.0 + 0.01 * ((7 * seed + int(6 * k)) % 11))

    start = tuple(0.125 + (i - grid // 2) * step for i in range(grid))
    found, losses = pool(loss, start=start, grid=grid)
    assert len(found.window) == grid
    assert found.window[1] - found.window[0] in (0.5, 1.0)
    assert all((s, k) in losses for s in found.seeds for k in found.window)
