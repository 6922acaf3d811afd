"""A custom objective: inputs and targets of a text.

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


# 1. Name, options and declarations: here no token sees later tokens, a trained model can continue a text, and windows
# of text overlap by one token, which is only a target in the first window. archwright/spec/objectives.py has all
# declarations.
class MyObjective(Objective):
    """-ln p(x_(t+1) | x_1 ... x_t) with some hidden inputs: word dropout (Bowman et al., 2016, section 3.1)."""

    kind: Literal["my_objective"] = "my_objective"
    causal: ClassVar[bool] = True
    generates_text: ClassVar[bool] = True
    overlap: ClassVar[int] = 1
    share: float = Field(0.1, ge=0, le=1)
    """Share of hidden tokens."""
    hidden_token: str = Field("<hidden>", min_length=1)
    """Special token that replaces them."""

    # Special tokens of the tokenizer.
    @property
    def special_tokens(self) -> tuple[str, ...]:
        return (self.hidden_token,)


# 2. The function that makes batches. Random numbers come only from the generator, so that a batch depends only on
# (seed, step), and a resumed run repeats it.
def my_objective(spec: MyObjective, vocabulary: Vocabulary) -> MakeBatch:
    """Return a function from windows of text to inputs and targets."""
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


# 3. The registration.
archwright.register(MyObjective, my_objective)
