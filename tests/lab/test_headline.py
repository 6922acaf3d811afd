"""Headlines of studies: short whatever was found, and in the words of the outcomes."""

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
        (OUTCOMES, "Of 6 variants, 1 is better and 1 worse"),
    ],
)
def test_headlines(outcomes: tuple[str, ...], expected: str) -> None:
    assert headline(found(*outcomes), "old", HEADLINE_WORDS) == expected


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
