"""PEGASUS's objective: the principal sentences of a text."""

import math
from typing import Literal

from pydantic import Field

from archwright.spec.objectives import FromText


class GapSentences(FromText):
    """-ln p(y_(t+1) | y_1 ... y_t, source). The target is the principal sentences of a text in order; the source is the
    text with a mask token instead of each (Zhang et al., 2019, PEGASUS, section 3.1). Principal sentences have the
    largest ROUGE-1 F1 with the rest of the text, with each word counted once and sentences scored independently
    ("Ind-Uniq", as in Guo et al., 2022, LongT5, section 3.2)."""

    kind: Literal["gap_sentences"] = "gap_sentences"
    share: float = Field(0.2, gt=0, le=1, examples=[0.3])
    """Share of principal sentences, at least one sentence; a sentence ends with ".", "!" or "?" before whitespace."""
    mask_token: str = Field("<mask>", min_length=1, examples=["[MASK]"])
    """Special token that replaces a sentence."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return (self.mask_token,)

    def target_length(self, context_length: int) -> int:
        """Return the decoder's tokens per source for sentences of equal length."""
        return math.ceil(self.share * self.window_length(context_length)) + 1
