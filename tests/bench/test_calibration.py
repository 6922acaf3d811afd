"""The replay on pools whose answers are known: from a formula, or from their making."""

import math
import sys

import numpy as np
import pytest
from scipy import stats

from archwright.spec.errors import UserError
from bench import calibration
from bench.calibration import Pool, aa, binomial_interval, planted, read_pool, replay, table

pytestmark = pytest.mark.slow

SEED_NOISE = 0.03


def pool(seeds=64, valley=0.3, depth=0.03, run_noise=0.0, powers=range(-2, 3)) -> Pool:
    """Parabolas in log rate around `valley`, moved up and down by each seed's noise and each run's."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, SEED_NOISE, (seeds, 1)) + rng.normal(0, run_noise, (seeds, len(powers)))
    return Pool(3.4 + depth * (np.array(powers) - valley) ** 2 + noise, powers)


def test_equal_arms_are_told_apart_as_rarely_as_promised():
    found = aa(pool(run_noise=0.01), draws=700)
    assert binomial_interval(found.wins, found.draws, 0.99)[0] < 0.05
    assert found.covered / found.draws > 0.93
    assert 0 < found.superior == found.draws - found.covered
    assert found.wins <= found.superior
    assert found.edges == found.truth == 0


@pytest.mark.parametrize(("seeds", "effect"), [(3, 0.05), (5, 0.02), (5, 0.01)])
def test_power_is_that_of_the_noncentral_t(seeds, effect):
    """Without noise of runs a tuned loss is 3.4 plus the seed's noise, whatever the window."""
    exact = pool(seeds=3000)
    found = planted(exact, effect, draws=700, seeds=seeds)
    spread = float(np.std(exact.losses[:, 0], ddof=1)) * math.sqrt(2)
    shift = 3.4 * effect / (spread / math.sqrt(seeds))
    bound = stats.t.ppf(0.975, seeds - 1)
    power = stats.nct.sf(bound, seeds - 1, shift) + stats.nct.cdf(-bound, seeds - 1, shift)
    low, high = binomial_interval(found.superior, found.draws, 0.999)
    assert low < power < high
    assert found.right <= found.wins <= found.superior
    assert found.covered / found.draws > 0.92
    assert found.truth == pytest.approx(-effect * 3.4, rel=0.003)


def test_a_harm_is_called_worse():
    found = planted(pool(), effect=-0.05, draws=50)
    assert found.wins > 45
    assert found.right == 0
    assert found.truth == pytest.approx(0.05 * 3.4, rel=0.01)


def test_a_draw_is_judged_as_by_hand():
    """A window in the middle, polyfit through the three points, scipy's paired test."""
    data = pool(run_noise=0.002, valley=0.0)
    rows = np.arange(10).reshape(2, 5)
    scaled = data.losses[rows] * np.array([1, 0.98])[:, None, None]
    assert (scaled[..., 1:4].mean(1).argmin(-1) == 1).all()
    fits = [[np.polyfit((-1, 0, 1), losses[1:4], 2) for losses in arm] for arm in scaled]
    tuned = np.array([[y - b * b / (4 * a) for a, b, y in arm] for arm in fits])
    expected = stats.ttest_rel(tuned[1], tuned[0]).confidence_interval(0.95)
    found = calibration.judge_as_the_lab(data, rows, 0.02)
    assert (found.interval.low, found.interval.high) == pytest.approx(tuple(expected), abs=1e-9)
    assert found.loss == pytest.approx(tuned[1].mean())
    assert found.won == (not expected.low <= 0 <= expected.high)


def test_valleys_outside_the_pool_conclude_nothing():
    found = planted(pool(valley=6), effect=0.1, draws=30)
    assert (found.edges, found.wins) == (30, 0)
    assert found.superior > 20


@pytest.mark.parametrize("design", calibration.DESIGNS)
def test_no_seed_is_drawn_twice_and_draws_repeat(design, monkeypatch):
    judge, extra = calibration.DESIGNS[design]
    drawn = []

    def watched(data, rows, effect):
        drawn.append(rows)
        return judge(data, rows, effect)

    monkeypatch.setitem(calibration.DESIGNS, design, (watched, extra))
    first, again = (replay(pool(24), design, 20, 4, seed=3) for _ in range(2))
    assert first == again
    assert all(rows.shape == (2, 4 + extra) for rows in drawn)
    assert all(len(np.unique(rows)) == rows.size for rows in drawn)
    assert len({tuple(rows.flat) for rows in drawn}) == 20


def test_one_sweep_errs_more_with_more_seeds():
    """Why every seed sweeps: the noise of one sweep's choice is not in the interval of the others."""
    noisy = pool(seeds=400, depth=0.03, valley=0.0, run_noise=0.03)
    noisy.losses[:] -= noisy.losses.mean(1, keepdims=True) - 3.4  # no noise of seeds, all of runs
    swept = replay(noisy, "one seed sweeps, others confirm", 300, 9)
    whole = replay(noisy, "the lab", 300, 9)
    assert whole.wins / 300 < 0.1 < 0.15 < swept.wins / 300


def start_first(lines, first):
    """The file's first rate is that at which a sweep starts; the rest may stand in any order."""
    return [lines[-first], *lines[:-first][::-1], *lines[1 - first :]]


def write(path, losses, first=0, column="lr"):
    lines = [
        f"x,{seed},{0.01 * 3 ** (k + first)!r},{loss!r}\n"
        for seed, row in enumerate(losses)
        for k, loss in enumerate(row)
        if not math.isnan(loss)
    ]
    path.write_text(
        "".join([f"host,seed,{column},loss\n", *start_first(lines, first)]), encoding="utf-8"
    )


@pytest.mark.parametrize("column", ["lr", "rate"])
def test_pools_are_read_whatever_their_order(tmp_path, column):
    """Also those of before the learning rate's column was called lr."""
    losses = pool(8).losses.tolist()
    losses[2][1] = math.nan
    write(tmp_path / "pool.csv", losses, first=-2, column=column)
    found = read_pool(tmp_path / "pool.csv")
    assert found.powers == range(-2, 3)
    assert found.limits == (-2, 2)
    np.testing.assert_array_equal(found.losses, [*losses[:2], *losses[3:]])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "columns"),
        ("seed,loss\n1,3.0\n", "columns"),
        ("seed,lr,loss\n1,0.1,3.0\n", "equal ratios"),
        ("seed,lr,loss\n1,0.1,3.0\n1,0.3,3.0\n1,0.4,3.0\n", "equal ratios"),
        ("seed,rate,loss\n1,0.1,3.0\n1,0.3,3.0\n", "found 1 seeds at all of 2"),
    ],
)
def test_other_files_are_refused(tmp_path, text, complaint):
    (tmp_path / "pool.csv").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=complaint):
        read_pool(tmp_path / "pool.csv")


def test_the_table_has_every_design(tmp_path, monkeypatch, capsys):
    write(tmp_path / "pool.csv", pool(21).losses.tolist(), first=-2)
    monkeypatch.setattr(sys, "argv", ["calibration", str(tmp_path / "pool.csv"), "--draws", "10"])
    calibration.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines == [*table(read_pool(tmp_path / "pool.csv"), 10)]
    assert len({line.count("|") for line in lines}) == 1
    # 21 seeds are too few for ten that confirm and one that sweeps, twice.
    assert len(lines) == 2 + 3 * 2 * 3 - 2
