"""Numbers in words."""

import math

import pytest

from archwright.reporting import words


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (1000, "1k"),
        (3_412_992, "3.41M"),
        (999_600, "1M"),
        (2.5e9, "2.5B"),
        (1e12, "1T"),
        (5e15, "5000T"),
    ],
)
def test_counts_have_three_digits(value: float, said: str) -> None:
    assert words.count(value) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (0.147, "0.1 s"),
        (9.96, "10 s"),
        (59.6, "1 min 0 s"),
        (170.5, "2 min 50 s"),
        (3600, "1 h 0 min"),
        (3 * 3600 + 25 * 60, "3 h 25 min"),
        (86400 * 2 + 3600, "2 d 1 h"),
    ],
)
def test_durations_have_two_units(seconds: float, said: str) -> None:
    assert words.duration(seconds) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(512, "512 bytes"), (1_044_000, "1.04 MB"), (999_900, "1 MB"), (8.2e9, "8.2 GB")],
)
def test_sizes_are_decimal(value: float, said: str) -> None:
    assert words.size(value) == said


def test_rates_and_budgets() -> None:
    assert words.rate(4.35e11) == "435 GFLOP/s"
    assert words.rate(9.89e14) == "989 TFLOP/s"
    assert words.flops(4.23e13) == "4.23e13"


@pytest.mark.parametrize(
    ("share", "said"), [(0, "0 %"), (0.0312, "3.1 %"), (0.384, "38 %"), (1, "100 %")]
)
def test_shares(share: float, said: str) -> None:
    assert words.percent(share) == said


def test_what_is_not_finite_is_said_so() -> None:
    assert words.decimal(math.nan) == "not finite"
    assert words.significant(math.inf) == "not finite"


def test_perplexities() -> None:
    assert words.significant(11.434, 4) == "11.43"
    assert words.significant(4096.4, 3) == "4,096"
    assert words.significant(1e304, 4) == "1.000e+304"


@pytest.mark.slow
def test_lists() -> None:
    assert words.listed(["a"]) == "a"
    assert words.listed(["a", "b", "c"]) == "a, b and c"
