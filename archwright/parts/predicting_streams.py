"""Predicting streams: extra vectors per token that predict several future tokens."""

import torch
from jaxtyping import Float
from torch import Tensor

from archwright.parts.context import Context
from archwright.parts.linear import Embedding


class PredictingStreams(Embedding):
    """[x; g_1 ... g_1; ...; g_n ... g_n]: the tokens, then n streams with one vector per token.

    Shapes: g [n, width]; x [batch, length, width]; the result [batch, (1 + n) length, width]. A vector has its token's
    position plus 1, and predicts the next token. In stream i it sees itself and the tokens visible i - 1 places earlier
    (at least the first token), so it predicts without the last i - 1 tokens. It is invisible to other vectors.

    Qi et al., 2020, ProphetNet: n-stream self-attention.
    """

    def beside(
        self, x: Float[Tensor, "batch length width"], context: Context, number: int | None = None
    ) -> tuple[Float[Tensor, "batch longer width"], Context]:
        """Append the first `number` streams to x; return the result and its context."""
        vectors = self.weight[:number].to(x.dtype)
        # [n * length, width]
        streams = vectors.repeat_interleave(x.shape[1], 0)
        longer = torch.cat((x, streams.expand(len(x), -1, -1)), 1)
        return longer, context.placed(context.layout.with_streams(len(vectors)))
