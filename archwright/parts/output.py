"""The output head: from the last vector to logits."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.linear import Linear
from archwright.spec.embeddings import Head as HeadSpec


class Head(Linear):
    """logits = x W^T, then c tanh(logits / c) if capped; W may be the embedding's table.

    Shapes: x [..., dim], W [vocab_size, dim], logits [..., vocab_size].
    Press and Wolf, 2016 (tying); Gemma 2, section 2 (soft-cap).
    """

    def __init__(
        self, spec: HeadSpec, dim: int, vocab_size: int, table: nn.Parameter | None = None
    ) -> None:
        super().__init__(dim, vocab_size)
        self.softcap = None if spec.softcap == "none" else spec.softcap
        if table is not None:
            self.weight = table

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch vocab"]:
        logits = super().forward(x)
        if self.softcap is None:
            return logits
        return self.softcap * torch.tanh(logits / self.softcap)
