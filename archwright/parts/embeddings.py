"""Both ends of a model: from tokens to vectors, and from the last vector to logits."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from archwright.parts.linear import Embedding, Linear
from archwright.spec import embeddings as spec


class TokenEmbedding(Embedding):
    """x = P (scale * W[token]) + b, with a table W of shape [vocab_size, spec.dim].

    The scale is 1, sqrt(dim) or a number, rounded to the dtype of the table first, as Gemma does; a head
    that shares the table reads it unscaled. P [dim, spec.dim] stands where the two widths differ, b [dim]
    where asked for.
    Vaswani et al., 2017, section 3.4; Lan et al., 2019, ALBERT, section 3.1 (P).
    """

    def __init__(self, spec: spec.Embedding, dim: int, vocab_size: int) -> None:
        width = dim if spec.dim == "auto" else spec.dim
        super().__init__(vocab_size, width)
        self.project_in = None if width == dim else Linear(width, dim)
        self.bias = nn.Parameter(torch.zeros(dim)) if spec.bias else None
        named = {"none": 1.0, "sqrt_dim": dim**0.5}
        self.scale = named[spec.scale] if isinstance(spec.scale, str) else spec.scale

    def forward(self, index: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch dim"]:
        x = F.embedding(index, self.weight)
        if self.scale != 1:
            x = x * torch.tensor(self.scale, dtype=x.dtype, device="cpu")
        if self.project_in is not None:
            x = self.project_in(x)
        return x if self.bias is None else x + self.bias.to(x.dtype)


class Head(Linear):
    """logits = (P x W^T + b) * multiplier / divisor, then c tanh(logits / c) if capped; W may be the
    embedding's table, and P [width, dim] stands where that has another width.

    Shapes: x [..., dim], W [vocab_size, width], b [vocab_size], logits [..., vocab_size].
    Press and Wolf, 2016 (tying); Gemma 2, section 2 (soft-cap); Lan et al., 2019, section 3.1 (P).

    Args:
        width: of the table; that of x where none is given.
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
        width: int | None = None,
        divisor: float = 1.0,
    ) -> None:
        width = width or dim
        super().__init__(width, vocab_size, bias=spec.bias)
        self.project_out = None if width == dim else Linear(dim, width)
        self.multiplier, self.divisor = spec.multiplier, spec.divisor * divisor
        self.softcap = None if spec.softcap == "none" else spec.softcap
        if table is not None:
            self.weight = table

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch vocab"]:
        if self.project_out is not None:
            x = self.project_out(x)
        logits = super().forward(x)
        if self.multiplier != 1:
            logits = logits * self.multiplier
        if self.divisor != 1:
            logits = logits / self.divisor
        if self.softcap is None:
            return logits
        return self.softcap * torch.tanh(logits / self.softcap)
