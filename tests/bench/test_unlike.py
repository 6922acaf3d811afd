"""The replay on a pool of two unlike variants: what it reads, shifts and draws."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

from archwright.spec.errors import UserError
from archwright.spec.study_spec import StudySpec
from bench import unlike
from bench.unlike import STEP, Recorded, Row, findings, read_pool, rows_of

SEEDS = 32
POOL = Path(__file__).parents[2] / "docs" / "unlike-pool.csv"


def write(path: Path, *, seeds: int = SEEDS, noise: float = 0.01) -> Path:
    """Write a pool of two parabolas, one steeper, higher, and with its bottom half a step lower."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("variant", "seed", "lr", "loss"))
        for name, rise, bottom, level in (("one", 0.03, 0, 4.2), ("other", 0.06, -2, 4.3)):
            for seed in range(seeds):
                for k in range(bottom - 6, bottom + 7):
                    loss = level * (1 + rise * ((k - bottom) / STEP) ** 2) + rng.normal(0, noise)
                    writer.writerow((name, seed, f"{0.03 * 3 ** (k / STEP):.4g}", loss))
    return path


def test_a_pool_is_read_by_seed_and_rate(tmp_path: Path) -> None:
    pool = read_pool(write(tmp_path / "pool.csv", noise=0))
    assert {name: found.losses.shape for name, found in pool.items()} == {
        "one": (SEEDS, 13),
        "other": (SEEDS, 13),
    }
    assert pool["one"].bottom - pool["other"].bottom == 2
    loss = pool["other"].surface(range(SEEDS), pool["other"].bottom, 0.01)
    assert loss(3, 0) == pytest.approx(4.3 * 1.01)
    # 4.4 rates above the bottom: two fifths of the way from 4 to 5 of them
    between = 0.06 * (1 + 0.4 * ((5 / STEP) ** 2 - 1))
    assert loss(3, 1.1) == pytest.approx(4.3 * (1.01 + between))
    assert loss(3, 99) == loss(3, 1.5)


def test_a_seed_deviates_as_at_the_nearest_recorded_rate(tmp_path: Path) -> None:
    found = read_pool(write(tmp_path / "pool.csv", noise=0.1))["one"]
    loss = found.surface(range(SEEDS), found.bottom, 0.0)
    at = [*found.powers].index(found.bottom)
    deviations = [loss(s, 0.1) - loss(0, 0.1) for s in range(SEEDS)]
    assert deviations == pytest.approx([*(found.losses[:, at] - found.losses[0, at])])


def test_variants_made_equal_are_seldom_told_apart_and_effects_are_found(tmp_path: Path) -> None:
    pool = read_pool(write(tmp_path / "pool.csv"))
    rows = rows_of(pool)
    assert [row.effect for row in rows] == [0, 0, 0, 0.005, 0.01, 0.02]
    equal = findings(pool, rows[2], StudySpec(seeds=5), range(100))
    assert sum(f.effect.outcome in ("better", "worse") for f in equal) < 10
    assert abs(np.mean([f.effect.mean for f in equal])) < 0.004
    better = findings(pool, rows[5], StudySpec(seeds=5), range(30))
    assert np.mean([f.effect.mean for f in better]) == pytest.approx(-0.02 * 4.2, abs=0.004)
    assert all(f.effect.outcome == "better" for f in better)


def test_no_seed_tunes_and_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = read_pool(write(tmp_path / "pool.csv", noise=0))
    taken: list[list[int]] = []

    def surface(self: unlike.Recorded, seeds: list[int], start: float, change: float) -> object:
        taken.append(list(map(int, seeds)))
        return lambda seed, k: float(4 + k * k + seed * 1e-6)

    monkeypatch.setattr(unlike.Recorded, "surface", surface)
    for row in (Row("itself", "one", "one"), Row("both", "one", "other")):
        taken.clear()
        findings(pool, row, StudySpec(seeds=5), range(1))
        first, second = taken
        assert (first == second) == (row.one != row.other)
        tuning, judged = {*first[:2], *second[:2]}, {*first[2:], *second[2:]}
        assert len(tuning) == (2 if row.one != row.other else 4)
        assert not tuning & judged
        assert len(first) == len(second) == 2 + 5


def test_variants_made_equal_differ_by_chance_alone() -> None:
    """What is compared varies about no difference as independent seeds would: by the noise of pairs over the root of
    their number."""
    rng, powers = np.random.default_rng(0), np.arange(-6, 7)
    valley = 4.2 * (1 + 0.03 * (powers / STEP) ** 2)
    noise = rng.normal(0, 0.01, (2, 16, 1))
    pool = {name: Recorded(valley + noise[i], powers) for i, name in enumerate(("one", "other"))}
    study = StudySpec(seeds=9, early_stopping=False)
    found = findings(pool, rows_of(pool)[2], study, range(300))
    expected = np.std(noise[0] - noise[1]) / 9**0.5
    assert np.std([f.effect.mean for f in found]) == pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("variant,loss\n", "expected the columns"),
        (
            "variant,seed,lr,loss\na,0,0.01,4\na,0,0.02,4\n",
            r"expected rates at powers of 3\^\(1/4\)",
        ),
        ("variant,seed,lr,loss\na,0,0.01,4\na,0,0.03,4\n", "expected no gap in the rates of a"),
        ("variant,seed,lr,loss\na,0,0.01,4\n", "expected 16 seeds at all rates, found 1"),
    ],
)
def test_what_is_no_pool_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "pool.csv").write_text(text, "utf-8")
    with pytest.raises(UserError, match=expected):
        read_pool(tmp_path / "pool.csv")


@pytest.mark.slow
def test_the_recorded_pool_is_replayed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["unlike", str(POOL), "--draws", "40", "--seeds", "9"])
    unlike.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 6
    for line in lines[2:5]:
        assert float(line.split("|")[4].strip().rstrip("%")) < 15
