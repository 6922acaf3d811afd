"""Parts at the end of a layer, after its branches: embeddings per layer, and a fixed factor."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.context import Context
from archwright.parts.linear import Linear
from archwright.parts.sharing import LayerInfo

Stream = Float[Tensor, "batch length dim"]


class LayerEmbedding(nn.Module):
    """y = x + norm(W_out (GELU(W_gate x) * e)), e = (norm_e(W_in x0 / sqrt(dim)) + sqrt(width) T[token]) / sqrt(2).

    x0 is the stream before the first layer. Each layer has a table T [vocab_size, width]; all layers share the weight
    of norm_e. Shapes: x, x0 and y [batch, length, dim]; e [batch, length, width]; W_in, W_gate [width, dim]; W_out
    [dim, width].

    Google, 2025, Gemma 3n, and 2026, Gemma 4, published code.

    Args:
        width: Width of e.
        layer: Place in the model, which gives the vocabulary and the norms.
    """

    def __init__(self, width: int, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        self.table = layer.token_table(width, "residual.layer_embedding")
        self.project, self.gate = (Linear(dim, width, deepnorm=False) for _ in range(2))
        self.out = Linear(width, dim, is_residual_output=True)
        self.norm = layer.new_norm(dim)
        # A reference, not a submodule: the stack registers the norm once.
        key = (layer.norm, width)
        self.shared_norm = layer.shared("layer_embedding", key, lambda: layer.new_norm(width))

    def forward(self, x: Stream, context: Context) -> Stream:
        # [batch, length, width]
        from_stream = self.project(context.read("embedding")) * self.project.in_features**-0.5
        row = self.table(context.tokens) * self.out.in_features**0.5
        e = (self.shared_norm.value(from_stream) + row.to(from_stream.dtype)) * 0.5**0.5
        added: Tensor = self.norm(self.out(F.gelu(self.gate(x), approximate="tanh") * e))
        return x + added.to(x.dtype)


class LayerScalar(nn.Module):
    """y = s x, with a number s of the layer that is not trained: 1, or that of a checkpoint (Gemma 4)."""

    value: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.ones(1))

    def forward(self, x: Stream) -> Stream:
        return x * self.value.to(x.dtype)

    def reset_parameters(self) -> None:
        nn.init.ones_(self.value)
