"""Multi-token prediction from outside the package: an auxiliary loss of the tokens after the next one.

It is the last layer of a model, which adds nothing to the stream:
archwright train modern --parts multi_token.py model.num_layers=9 'model.layers.suffix=["ahead"]' \
    'model.layer_kinds.ahead={attention={kind="none"}, feedforward={kind="none"}, recurrence={kind="multi_token"}}'
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

import archwright as aw
from archwright.data.inputs import IGNORE
from archwright.losses import linear_cross_entropy
from archwright.parts.context import Context
from archwright.parts.feedforward import FEEDFORWARDS
from archwright.parts.linear import Linear
from archwright.parts.mixers import ATTENTIONS, Mixer
from archwright.parts.sharing import LayerInfo
from archwright.parts.states import RecurrentState
from archwright.spec.attention import Attention, SoftmaxAttention
from archwright.spec.choice import Count
from archwright.spec.feedforward import FeedForward, SwiGLU
from archwright.spec.mixers import ALL_INPUTS, Recurrence


class MultiToken(Recurrence):
    """L = weight / depth sum_k -ln p_k(token i + k + 1), k = 1 ... depth (DeepSeek-V3, section 2.2)."""

    kind: Literal["multi_token"] = "multi_token"
    takes: ClassVar[frozenset[str]] = ALL_INPUTS
    depth: Count = 1
    """Further tokens that are predicted."""
    weight: float = 0.3
    """Factor of the loss."""
    attention: Attention = SoftmaxAttention()
    """Attention of each module."""
    feedforward: FeedForward = SwiGLU()
    """Feed-forward of each module."""


class Module(nn.Module):
    """h = block(M [norm(h); norm(e)]), e the embeddings of the tokens k further on; shapes [batch, length, dim]."""

    def __init__(self, spec: MultiToken, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        self.norms = nn.ModuleList(layer.new_norm(dim) for _ in range(5))
        self.join = Linear(2 * dim, dim)
        self.attention: Mixer = ATTENTIONS.make(spec.attention, dim, layer)
        self.feedforward: nn.Module = FEEDFORWARDS.make(spec.feedforward, dim)

    def forward(self, h: Tensor, e: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Return h, and its norm for the head."""
        of_h, of_e, before, between, last = self.norms
        h = self.join(torch.cat((of_h(h), of_e(e)), -1)).to(h.dtype)
        h = h + self.attention(before(h), context)
        h = h + self.feedforward(between(h))
        return h, last(h)


class MultiTokenPrediction(Mixer):
    """Sequential modules that share the model's embedding and head; the branch returns 0, and asks for its loss."""

    reads_from: ClassVar[dict[str, int]] = {"embedding": 0}
    auxiliary_name = "multi_token_loss"

    def __init__(self, spec: MultiToken, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        self.weight = spec.weight / spec.depth
        self.ahead = nn.ModuleList(Module(spec, dim, layer) for _ in range(spec.depth))

    def forward(
        self,
        x: Tensor,
        context: Context,
        state: Any = None,
        projected: Sequence[Tensor] | None = None,
    ) -> Tensor:
        if self.training and torch.is_grad_enabled() and context.head is not None:
            loss = self.weight * self._loss(x, context, context.head)
            if self.first_pass:
                self.auxiliary = loss
        return torch.zeros_like(x)

    def _loss(self, h: Tensor, context: Context, head: Any) -> Tensor:
        embedding, losses = context.read("embedding"), []
        for k, module in enumerate(self.ahead, 1):
            h, normed = module(h, embedding.roll(-k, 1), context)
            losses.append(linear_cross_entropy(normed, head, self._targets(context, k + 1)).total)
        return torch.stack(losses).sum()

    def _targets(self, context: Context, distance: int) -> Tensor:
        """Return the tokens at a distance, [batch, length], of the same document."""
        layout, targets = context.layout, context.tokens.roll(-distance, 1)
        exists = torch.ones_like(targets, dtype=torch.bool)
        exists[:, -distance:] = False
        if layout.segment_ids is not None:
            exists &= layout.segment_ids == layout.segment_ids.roll(-distance, 1)
        if layout.padding_mask is not None:
            exists &= layout.padding_mask & layout.padding_mask.roll(-distance, 1)
        return targets.masked_fill(~exists, IGNORE)

    def new_state(self, batch: int) -> RecurrentState:
        return RecurrentState()  # it needs nothing of earlier tokens to add nothing

    def prepare(self, context: Context) -> None:
        for module in self.ahead:
            module.attention.prepare(context)

    def use_kernel(self, name: str) -> None:
        for module in self.ahead:
            module.attention.use_kernel(name)


aw.register(MultiToken, MultiTokenPrediction)
