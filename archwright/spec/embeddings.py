"""Embedding and output head: from tokens to vectors and back."""

from archwright.spec.choice import OptionalFloat, Probability, Spec


class Embedding(Spec):
    """x = weight[token], a table of shape [vocab_size, dim]."""

    dropout: Probability = 0.0
    """Share of the embedding's values dropped in training."""


class Head(Spec):
    """logits = x weight^T, with weight of shape [vocab_size, dim]."""

    tied: bool = False
    """Use the embedding's table as the head's weight (Press and Wolf, 2016)."""
    softcap: OptionalFloat = "none"
    """c tanh(logits / c), which keeps logits within +-c (Gemma 2); "none" leaves them alone."""
