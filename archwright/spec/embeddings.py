"""Embedding and output head: from tokens to vectors and back."""

from typing import Annotated, Literal

from pydantic import Field

from archwright.spec.choice import OptionalFloat, Probability, Spec
from archwright.spec.norms import NoNorm, Norm


class Embedding(Spec):
    """x = norm(scale * weight[token]), with a table of shape [vocab_size, dim]."""

    scale: Literal["none", "sqrt_dim"] | Annotated[float, Field(gt=0)] = "none"
    """What the table's rows are multiplied by: sqrt(dim) (Vaswani et al., 2017; Gemma), or a number
    (Granite). The head of a tied table reads it unscaled."""
    norm: Norm = NoNorm()
    """Norm over the embedding, after positions were added (BLOOM)."""
    dropout: Probability = 0.0
    """Share of the embedding's values dropped in training."""


class Head(Spec):
    """logits = x weight^T * multiplier / divisor, with weight of shape [vocab_size, dim]."""

    tied: bool = False
    """Use the embedding's table as the head's weight (Press and Wolf, 2016)."""
    bias: bool = False
    """Learn an offset per token (GPT-J)."""
    multiplier: float = Field(1.0, gt=0)
    """What logits are multiplied by (Command R)."""
    divisor: float = Field(1.0, gt=0)
    """What logits are divided by (Granite)."""
    softcap: OptionalFloat = "none"
    """c tanh(logits / c), which keeps logits within +-c (Gemma 2); "none" leaves them alone."""
