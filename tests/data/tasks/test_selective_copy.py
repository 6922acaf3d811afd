"""Selective copying, by leaving out the blanks."""

from archwright.data.inputs import IGNORE
from archwright.spec.tasks import SelectiveCopy
from tests.data.tasks.conftest import Draw


def test_answers_are_what_is_no_blank_in_order(draw: Draw) -> None:
    spec = SelectiveCopy(copied=5, symbols=4)
    for length in (40, spec.shortest - 1):
        for tokens, answers in draw(spec, length):
            names = [spec.words[token] for token in tokens]
            assert names[-5:] == ["mark"] * 5
            copied = [name for name in names[:-5] if name != "blank"]
            assert [spec.words[answer] for answer in answers[-5:]] == copied
            assert (answers[:-5] == IGNORE).all()
