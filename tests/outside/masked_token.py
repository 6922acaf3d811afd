"""An objective from outside the package: masked tokens, as BERT learns.

archwright train modern --parts masked_token.py objective.kind=masked_token model.attention.mask.kind=full \
    'data.tokenizer.special_tokens=["[MASK]"]'
"""

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

import archwright as aw
from archwright.data.inputs import IGNORE, Batch, Inputs
from archwright.data.objectives import MakeBatch, Vocabulary
from archwright.spec.objectives import Objective


class MaskedToken(Objective):
    """-ln p(x_t | the text with some tokens hidden) at each hidden token x_t (Devlin et al., 2018, section 3.1)."""

    kind: Literal["masked_token"] = "masked_token"
    causal: ClassVar[bool] = False
    share: float = Field(0.15, gt=0, le=1)
    """Share of the tokens that are to be predicted."""
    masked: float = Field(0.8, ge=0, le=1)
    """Share of these that are hidden by the mask token."""
    random: float = Field(0.1, ge=0, le=1)
    """Share of these that are hidden by a random token; the rest is left as it is."""
    mask_token: str = "[MASK]"
    """The special token that hides others."""


def masked_token(spec: MaskedToken, vocabulary: Vocabulary) -> MakeBatch:
    mask_id = vocabulary.special_id(spec.mask_token, "objective.mask_token")
    special_ids = list(vocabulary.special_ids.values())

    def make(text: Inputs, generator: np.random.Generator) -> Batch:
        tokens = text.tokens
        chosen = (generator.random(tokens.shape) < spec.share) & ~np.isin(tokens, special_ids)
        if text.padding_mask is not None:
            chosen &= text.padding_mask
        how = generator.random(tokens.shape)
        noise = generator.integers(vocabulary.size, size=tokens.shape)
        noised = np.where(how < spec.masked + spec.random, noise, tokens)
        hidden = np.where(how < spec.masked, mask_id, noised)
        inputs = replace(text, tokens=np.where(chosen, hidden, tokens))
        return Batch(inputs, np.where(chosen, tokens, IGNORE))

    return make


aw.register(MaskedToken, masked_token)
