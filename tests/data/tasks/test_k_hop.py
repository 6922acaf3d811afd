"""Hops by searching, as the definition has them."""

from collections.abc import Sequence

import pytest

from archwright.data.inputs import IGNORE
from archwright.spec.tasks import KHop
from tests.data.tasks.conftest import Draw


def find(tokens: Sequence[int], i: int) -> int | None:
    """The largest j <= i with tokens[j - 1] == tokens[i]."""
    return next((j for j in range(i, 0, -1) if tokens[j - 1] == tokens[i]), None)


@pytest.mark.parametrize(("k", "symbols"), [(1, 4), (2, 4), (4, 3), (16, 2)])
def test_answers_are_found_by_hops(draw: Draw, k: int, symbols: int) -> None:
    answered = 0
    for tokens, answers in draw(KHop(k=k, symbols=symbols), 60):
        for i, answer in enumerate(answers.tolist()):
            place: int | None = i
            for _ in range(k):
                place = None if place is None else find(tokens.tolist(), place)
            assert answer == (IGNORE if place is None else tokens[place])
            answered += place is not None
    assert answered > 20
