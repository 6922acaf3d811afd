"""Studies of losses in a CSV file."""

import random
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from archwright.cli import main
from archwright.lab.external.study import compare_losses
from archwright.spec.errors import UserError


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own."""
    monkeypatch.chdir(tmp_path)


def write(rows: list[str], head: str = "variant,seed,loss") -> str:
    Path("losses.csv").write_text("\n".join([head, *rows]) + "\n")
    return "losses.csv"


def made() -> tuple[list[str], list[float]]:
    dice, rows, differences = random.Random(0), [], []
    for seed in (3, 5, 8, 13, 21):
        shared = dice.gauss(3, 0.1)
        pair = shared, shared - 0.05 + dice.gauss(0, 0.01)
        rows += [f"old,{seed},{pair[0]!r}", f"new one,{seed},{pair[1]!r}"]
        differences.append(pair[1] - pair[0])
    return rows, differences


def test_the_interval_is_that_of_scipy_with_the_share_of_error_of_one_look() -> None:
    rows, differences = made()
    results = compare_losses(write(rows))
    (effect,) = results.effects
    assert (effect.outcome, effect.seeds) == ("better", (3, 5, 8, 13, 21))
    assert effect.differences == pytest.approx(differences)
    half = (effect.interval.high - effect.interval.low) / 2
    error = float(np.std(differences, ddof=1)) / 5**0.5
    level = 2 * float(stats.t.sf(half / error, 4))
    assert 0.03 < level <= 0.0501  # some of it is kept for pairs that are added
    page = Path("studies/losses/report.html").read_text("utf-8")
    for words in ("as given", "one look at a fixed sample", "new one is better than old"):
        assert words in page
    assert main(["compare", "losses.csv", "--quiet"]) == 0


def test_curves_and_rates() -> None:
    rows = [
        f"{variant},{seed},{3 - better + 0.1 * seed + 1 / step},{step},{10 * step},1e-3"
        for variant, better in (("a", 0.0), ("b", 0.1))
        for seed in (0, 1, 2)
        for step in (10, 20)
    ]
    results = compare_losses(write(rows, "variant, seed, loss, step, tokens, lr"))
    assert [run.lr for run in results.runs] == [1e-3] * 6
    assert [point.tokens for point in results.runs[0].curve] == [100, 200]
    assert results.effects[0].differences == pytest.approx([-0.1] * 3)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["a,1,3", "b,1,3", "a,2,3", "b,2,3", "a,1,4"], "line 6: a, seed 1 is in line 2 too"),
        (["a,1,3", "b,1,3", "a,2,3", "b,3,3"], "line 4: seed 2 of a has no pair: add a run of b"),
        (["a,1,3", "b,1,3", "a,2,3", "b,2,3", "b,3,3"], "line 6: seed 3 of b has no pair"),
        (
            ["a,1,3", "b,1,three"],
            "line 3: found b, 1, three; expected variant, seed, loss, all numbers finite",
        ),
        (["a,1,3", "b,1,nan"], "line 3: found b, 1, nan"),
        (["a,1,3", "b,1.5,3"], "line 3: expected a whole seed and a loss"),
        (["a,1,3", "b,,3"], "line 3: expected a whole seed and a loss"),
        (["a,1,3", "b,1"], "line 3: expected a whole seed and a loss"),
        (["a,1,3", "a,2,3"], "found 1 variants"),
        ([], "found 0 variants"),
    ],
)
def test_refused_rows(rows: list[str], words: str) -> None:
    with pytest.raises(UserError) as refusal:
        compare_losses(write(rows))
    assert words in str(refusal.value)
    assert len(refusal.value.lines) == 1
    assert not Path("studies").exists()


def test_a_missing_column() -> None:
    with pytest.raises(
        UserError, match=r'no column loss; found variant, seed, los. Did you mean "los"'
    ):
        compare_losses(write(["a,1,3"], "variant,seed,los"))
    assert main(["compare", "none.csv"]) == 2


def test_margins_are_of_the_loss() -> None:
    rows = [
        f"{name},{seed},{3 + 0.1 * (name == 'a') + seed / 100}"
        for name in "ab"
        for seed in (0, 1, 2)
    ]
    [effect] = compare_losses(write(rows), margin="5% of the loss").effects
    assert (effect.outcome, effect.within_margin) == ("better", True)
    with pytest.raises(UserError, match="without shorter runs"):
        compare_losses(write(rows), margin="10%")
