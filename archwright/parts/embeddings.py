"""Both ends of a model: from tokens to vectors, and from the last vector to logits."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from archwright.parts.linear import Embedding, Linear
from archwright.spec import embeddings as spec


class TokenEmbedding(Embedding):
    """x = scale * W[token], with a table W of shape [vocab_size, dim].

    The scale is 1, sqrt(dim) or a number, rounded to the dtype of the table first, as Gemma does; a head
    that shares the table reads it unscaled.
    Vaswani et al., 2017, section 3.4.
    """

    def __init__(self, spec: spec.Embedding, dim: int, vocab_size: int) -> None:
        super().__init__(vocab_size, dim)
        named = {"none": 1.0, "sqrt_dim": dim**0.5}
        self.scale = named[spec.scale] if isinstance(spec.scale, str) else spec.scale

    def forward(self, index: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch dim"]:
        x = F.embedding(index, self.weight)
        if self.scale == 1:
            return x
        return x * torch.tensor(self.scale, dtype=x.dtype, device="cpu")


class Head(Linear):
    """logits = (x W^T + b) * multiplier / divisor, then c tanh(logits / c) if capped; W may be the
    embedding's table.

    Shapes: x [..., dim], W [vocab_size, dim], b [vocab_size], logits [..., vocab_size].
    Press and Wolf, 2016 (tying); Gemma 2, section 2 (soft-cap).

    Args:
        divisor: of an initialisation (muP), beside the one of the spec.
    """

    reads_out = True

    def __init__(
        self,
        spec: spec.Head,
        dim: int,
        vocab_size: int,
        table: nn.Parameter | None = None,
        *,
        divisor: float = 1.0,
    ) -> None:
        super().__init__(dim, vocab_size, bias=spec.bias)
        self.multiplier, self.divisor = spec.multiplier, spec.divisor * divisor
        self.softcap = None if spec.softcap == "none" else spec.softcap
        if table is not None:
            self.weight = table

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch vocab"]:
        logits = super().forward(x)
        if self.multiplier != 1:
            logits = logits * self.multiplier
        if self.divisor != 1:
            logits = logits / self.divisor
        if self.softcap is None:
            return logits
        return self.softcap * torch.tanh(logits / self.softcap)
