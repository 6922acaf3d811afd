"""Needles, found by reading."""

import numpy as np

from archwright.data.inputs import IGNORE
from archwright.spec.tasks import Needle
from tests.data.tasks.conftest import Draw


def test_the_answer_stands_behind_the_key_that_is_asked(draw: Draw) -> None:
    spec = Needle(pairs=3, keys=5, values=4, fillers=7)
    places = set()
    for tokens, answers in draw(spec, 40):
        names = [spec.words[token] for token in tokens]
        keys = [i for i, name in enumerate(names[:-1]) if name.startswith("k")]
        assert len({names[i] for i in keys}) == len(keys) == 3
        assert all(names[i + 1].startswith("v") for i in keys)
        assert sum(name.startswith("f") for name in names) == 40 - 7
        (found,) = (i for i in keys if names[i] == names[-1])
        assert answers[-1] == tokens[found + 1]
        assert (answers[:-1] == IGNORE).all()
        places |= set(keys)
    assert len(places) > 25


def test_the_shortest_text_holds_nothing_else(draw: Draw) -> None:
    spec = Needle(pairs=2)
    for tokens, answers in draw(spec, spec.shortest - 1):
        known = {tokens[0]: tokens[1], tokens[2]: tokens[3]}
        assert answers[-1] == known[tokens[4]]
        assert len(tokens) == 5 == np.size(answers)
