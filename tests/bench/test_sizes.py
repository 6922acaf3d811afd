"""Two sizes of one study are compared by what their files say."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from archwright.lab.sweep import PLACING
from archwright.spec.errors import UserError
from bench.sizes import Agreement, Study, bounds, report


def written(folder: Path, means: dict[str, float], outcomes: dict[str, str]) -> Path:
    """A study's files: five seeds of each variant, with a little noise."""
    noise = np.random.default_rng(0).normal(0, 0.001, (len(means), 5))
    rows = {
        "replicates": [
            {"variant": name, "seed": seed, "loss": mean + noise[i, seed], "lr": 0.01 * 4**seed}
            for i, (name, mean) in enumerate(means.items())
            for seed in range(5)
        ],
        "runs": [
            {
                **{"variant": "a", "seed": 9, "counts": True, "cpu_seconds": seconds},
                **{"lr": lr, "loss": loss},
            }
            for seconds, lr, loss in (
                (1800.0, 0.01, 4.0),
                (1800.0, 0.03, 3.9),
                (math.nan, 0.09, 4.1),
            )
        ],
        "effects": [
            {"variant": name, "outcome": outcome, "mean": 0.1, "low": 0.05, "high": 0.15}
            for name, outcome in outcomes.items()
        ],
    }
    folder.mkdir()
    for name, lines in rows.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [*lines[0]])
            writer.writeheader()
            writer.writerows(lines)
    return folder


@pytest.fixture
def studies(tmp_path: Path) -> tuple[Study, Study]:
    """At the larger size, c changes sides with all but d, and a and b are alike."""
    small = written(
        tmp_path / "small",
        {"base": 4.0, "a": 4.1, "b": 4.2, "c": 4.3, "d": 3.9},
        {"a": "worse", "b": "worse", "c": "worse", "d": "inconclusive"},
    )
    large = written(
        tmp_path / "large",
        {"base": 3.0, "a": 3.2, "b": 3.2, "c": 2.9, "d": 2.8},
        {"a": "worse", "b": "equivalent", "c": "better", "d": "better"},
    )
    return Study.read(small), Study.read(large)


def test_pairs_are_counted(studies: tuple[Study, Study]) -> None:
    small, large = studies
    assert small.core_hours == 1.0
    assert small.lrs["a"] == pytest.approx(0.16)
    assert small.placing == {
        n: pytest.approx(PLACING * (0.1 + 0.05 * 3.9) / 2 * (n == "a")) for n in small.losses
    }
    names = [*small.losses]
    near, far = small.pairs(names), large.pairs(names)
    found = Agreement.of(near, far)
    assert (found.pairs, found.known_small) == (10, 10)
    assert found.wrong == 3  # c with base, a and b
    assert found.right == 6  # those left, but for a with b
    assert found.signs in (6, 7)
    signs, right = bounds(near, far)
    assert 0 <= signs[0] < found.signs / 10 < signs[1] <= 1
    assert right[0] < 6 / 9 < right[1]


def test_the_report_says_what_was_decided_alike(studies: tuple[Study, Study]) -> None:
    text = report(*studies)
    assert "small: 3 of 4 decided in 3 runs, 1.00 core-hours" in text
    assert "decided alike: 1 of 4, 1.0 for each core-hour of the small study" in text
    assert "the other way round: 1" in text
    assert "known at the small size 10, of which at the large size 6 with the same sign" in text
    assert "| d | 0.16 | +0.100 (+0.050 to +0.150) | inconclusive |" in text


def test_what_is_no_study_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"replicates\.csv: no such file; expected the folder of"):
        Study.read(tmp_path)
