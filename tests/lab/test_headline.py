"""Headlines of studies: short whatever was found, and in the words of the outcomes."""

import math
import re
from dataclasses import replace
from typing import get_args

import pytest

from archwright.lab.report.page import headline
from archwright.lab.results import Effect, Outcome
from archwright.reporting.document import HEADLINE_WORDS
from tests.lab import made_results as made
from tests.tiny import ROOT

OUTCOMES = get_args(Outcome)


def found(*outcomes: str, names: tuple[str, ...] = ()) -> list[Effect]:
    """Effects of these outcomes, called a, b, c ... by default."""
    (effect,) = made.two_variants().effects
    effect = replace(effect, margin=math.nan)
    called = names or tuple("abcdefghijkl")
    return [
        replace(effect, variant=name, outcome=outcome)  # type: ignore[arg-type]
        for name, outcome in zip(called, outcomes, strict=False)
    ]


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ((), "Nothing was compared yet"),
        (("better",), "a is better than old"),
        (("inconclusive",), "The comparison of a with old is inconclusive"),
        (("better", "worse", "worse"), "Against old, a is better, b and c are worse"),
        (("better", "inconclusive"), "Against old, a is better, b is inconclusive"),
        (
            ("worse", "inconclusive", "inconclusive", "better", "better", "better", "worse"),
            "7 variants: 3 better, 2 worse, 2 inconclusive",
        ),
        (OUTCOMES, "5 variants: 1 better, 1 worse, 1 equivalent, 1 inconclusive, 1 identical"),
    ],
)
def test_headlines(outcomes: tuple[str, ...], expected: str) -> None:
    assert headline(found(*outcomes), "old", HEADLINE_WORDS) == expected


def test_a_difference_within_the_margin_is_said_to_be_small() -> None:
    effects = [replace(e, margin=1.0) for e in found("worse", "worse", "equivalent")]
    assert (
        headline(effects[:1], "old", HEADLINE_WORDS)
        == "a is worse than old, but by less than the margin"
    )
    assert headline(effects[::2], "old", 20) == (
        "Against old, a is worse by less than the margin, c is equivalent"
    )
    assert headline(effects, "old", HEADLINE_WORDS) == "3 variants: 2 worse, 1 equivalent"


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_names_of_many_words_are_left_out(outcome: str) -> None:
    effects = found(outcome, names=(made.LONG_NAMES[0],))
    said = headline(effects, made.LONG_NAMES[1], HEADLINE_WORDS)
    assert len(said.split()) <= HEADLINE_WORDS
    assert "he variant" in said
    assert said[0].isupper()


@pytest.mark.parametrize("number", range(13))
def test_no_mixture_of_outcomes_has_a_longer_one(number: int) -> None:
    for first in range(len(OUTCOMES)):
        outcomes = [OUTCOMES[(first + i) % len(OUTCOMES)] for i in range(number)]
        effects = found(*outcomes, names=made.TWELVE)
        assert len(headline(effects, "modern", HEADLINE_WORDS).split()) <= HEADLINE_WORDS


def test_an_open_verdict_has_one_word() -> None:
    """In the code, whose texts users read, and in the documentation."""
    files = [
        *(ROOT / "archwright").rglob("*.py"),
        *(ROOT / "docs").glob("*.md"),
        ROOT / "README.md",
    ]
    other = re.compile(r"\b(undecided|unclear|undetermined|not decided)\b", re.IGNORECASE)
    found = [(path.name, other.findall(path.read_text())) for path in files if path.exists()]
    assert [pair for pair in found if pair[1]] == []
