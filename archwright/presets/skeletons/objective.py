"""An objective of your own: what a model reads of a text, and what it is to predict.

archwright check my_objective.py
archwright train demo objective.kind=my_objective budget=60s --parts my_objective.py
"""

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

import archwright
from archwright.data.inputs import Batch, Inputs
from archwright.data.objectives import MakeBatch, Vocabulary, next_token
from archwright.spec.objectives import NextToken, Objective


# 1. What it is called, which options it has, and what it declares: here that no token sees what follows it, that a
# trained model can go on with a text, and that a window of text shares its last token with the next one, as it is
# only a target. archwright/spec/objectives.py has all that can be declared.
class MyObjective(Objective):
    """-ln p(x_(t+1) | x_1 ... x_t) where some of what is read is hidden: word dropout (Bowman et al., 2016, section
    3.1)."""

    kind: Literal["my_objective"] = "my_objective"
    causal: ClassVar[bool] = True
    generates_text: ClassVar[bool] = True
    overlap: ClassVar[int] = 1
    share: float = Field(0.1, ge=0, le=1)
    """Share of the tokens that are hidden."""
    hidden_token: str = Field("<hidden>", min_length=1)
    """The special token in their place."""

    # The tokenizer gets these.
    @property
    def special_tokens(self) -> tuple[str, ...]:
        return (self.hidden_token,)


# 2. What makes batches. Whatever is drawn is drawn from the generator: then a batch follows from (seed, step), and a
# run that is resumed goes on as if it had never stopped.
def my_objective(spec: MyObjective, vocabulary: Vocabulary) -> MakeBatch:
    """Return what makes windows of text into what is read and what is to be predicted."""
    hidden = vocabulary.special_id(spec.hidden_token, "objective.hidden_token")
    follow = next_token(NextToken(), vocabulary)  # inputs x_1 ... x_n, targets x_2 ... x_(n+1)

    def make(text: Inputs, generator: np.random.Generator) -> Batch:
        batch = follow(text, generator)
        tokens = batch.inputs.tokens  # [batch, length]
        chosen = generator.random(tokens.shape) < spec.share
        if batch.inputs.padding_mask is not None:
            chosen &= batch.inputs.padding_mask
        tokens = np.where(chosen, hidden, tokens)
        return replace(batch, inputs=replace(batch.inputs, tokens=tokens))

    return make


# 3. The line that joins them.
archwright.register(MyObjective, my_objective)
