"""Streams beside a text, each with a vector of every place to come, from which tokens are predicted."""

import torch
from jaxtyping import Float
from torch import Tensor

from archwright.parts.context import Context
from archwright.parts.linear import Embedding


class PredictingStreams(Embedding):
    """[x; g_1 ... g_1; ...; g_n ... g_n]: the tokens of a text, then the vectors of n streams, one for each token.

    Shapes: g [n, width]; x [batch, length, width]; the result [batch, (1 + n) length, width]. A vector stands at the
    position behind its token. That of the i-th stream sees what the token i - 1 places before its own may see, or the
    first of the text where there is none, and itself; no other vector sees it. So it knows the text but for the last
    i - 1 tokens, and predicts what follows its token.

    Qi et al., 2020, ProphetNet: n-stream self-attention.
    """

    def beside(
        self, x: Float[Tensor, "batch length width"], context: Context, number: int | None = None
    ) -> tuple[Float[Tensor, "batch longer width"], Context]:
        """Return the tokens with the vectors of the first `number` streams, and their context."""
        vectors = self.weight[:number].to(x.dtype)
        # [n * length, width]
        each = vectors.repeat_interleave(x.shape[1], 0)
        longer = torch.cat((x, each.expand(len(x), -1, -1)), 1)
        return longer, context.placed(context.layout.with_streams(len(vectors)))
