"""An objective from outside the package: fill in the middle, as models of code learn.

archwright train modern --parts fill_in_middle.py objective.kind=fill_in_middle
"""

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

import archwright as aw
from archwright.data.inputs import Batch, Inputs
from archwright.data.objectives import MakeBatch, Row, Vocabulary, next_token
from archwright.spec.objectives import NextToken, Objective


class FillInMiddle(Objective):
    """-ln p(x_(t+1) | x_1 ... x_t), of texts (prefix, middle, suffix) that are moved to (prefix, suffix, middle), each
    behind a token of its own (Bavarian et al., 2022, section 3, PSM)."""

    kind: Literal["fill_in_middle"] = "fill_in_middle"
    causal: ClassVar[bool] = True
    generates_text: ClassVar[bool] = True
    overlap: ClassVar[int] = 1
    rate: float = Field(0.5, ge=0, le=1)
    """Share of the texts that are moved."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return ("<PRE>", "<SUF>", "<MID>")


def fill_in_middle(spec: FillInMiddle, vocabulary: Vocabulary) -> MakeBatch:
    marks = [
        vocabulary.special_id(name, "objective.special_tokens") for name in spec.special_tokens
    ]
    follow = next_token(NextToken(), vocabulary)

    def make(text: Inputs, generator: np.random.Generator) -> Batch:
        moved, chosen = text.tokens.copy(), generator.random(len(text.tokens)) < spec.rate
        if text.segment_ids is not None:  # what one document lacks is not sought in another
            chosen &= (text.segment_ids == text.segment_ids[:, :1]).all(axis=1)
        for row in np.flatnonzero(chosen):
            real = ... if text.padding_mask is None else text.padding_mask[row]
            moved[row, real] = _moved(text.tokens[row, real], marks, generator)
        return follow(replace(text, tokens=moved), generator)

    return make


def _moved(text: Row, marks: list[int], generator: np.random.Generator) -> Row:
    """Return a text with its parts moved, and as much left off its end as the marks take."""
    kept = text[: -len(marks)]
    if not len(kept):
        return text
    cuts = np.sort(generator.integers(len(kept) + 1, size=2))
    prefix, middle, suffix = np.split(kept, cuts)
    parts = zip(marks, (prefix, suffix, middle), strict=True)
    return np.concatenate([np.append(mark, part) for mark, part in parts])


aw.register(FillInMiddle, fill_in_middle)
