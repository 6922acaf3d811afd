"""RWKV's channel mix from outside the package: a feed-forward that reads the token before, so that it has a state.

archwright train modern --parts channel_mix.py model.feedforward.kind=channel_mix
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

import archwright as aw
from archwright.parts.context import Context
from archwright.parts.linear import Linear
from archwright.parts.mixers import Mixer
from archwright.parts.sharing import LayerInfo
from archwright.parts.states import RecurrentState
from archwright.spec.feedforward import FeedForward
from archwright.spec.mixers import Mixer as MixerChoice


class ChannelMix(FeedForward, MixerChoice):
    """y = sigmoid(R r) * V relu(K k)^2, r and k shares of a token and the one before (Peng et al., 2023, RWKV)."""

    kind: Literal["channel_mix"] = "channel_mix"
    takes: ClassVar[frozenset[str]] = frozenset({"segment_ids", "padding_mask"})


class ChannelMixer(Mixer):
    """k = x + a (x' - x), r = x + b (x' - x), with x' the token before in the document, or 0."""

    def __init__(self, spec: ChannelMix, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        self.shares = nn.Parameter(torch.empty(2 * dim))
        self.key, self.receptance = Linear(dim, 4 * dim), Linear(dim, dim)
        self.value = Linear(4 * dim, dim, is_residual_output=True)
        # Deeper layers read less of the token before.
        self.share = 1 - layer.number / layer.num_layers / 2

    def forward(
        self,
        x: Tensor,
        context: Context,
        state: RecurrentState | None = None,
        projected: Sequence[Tensor] | None = None,
    ) -> Tensor:
        before, shares = self._before(x, context, state), self.shares.to(x.dtype).chunk(2)
        k, r = (x + share * (before - x) for share in shares)
        out: Tensor = torch.sigmoid(self.receptance(r)) * self.value(self.key(k).relu().square())
        return out

    def _before(self, x: Tensor, context: Context, state: RecurrentState | None) -> Tensor:
        """Return the real token before each one, [batch, length, dim]: the last of the state, or 0."""
        real, at = context.layout.padding_mask, torch.arange(1, x.shape[1] + 1, device=x.device)
        last = None if state is None else state.get("last")
        rows = torch.cat((torch.zeros_like(x[:, :1]) if last is None else last, x), 1)
        at = at.expand(len(x), -1) if real is None else torch.where(real, at, 0).cummax(1).values
        if state is not None:
            state.update(last=rows.gather(1, at[:, -1:, None].expand(-1, -1, x.shape[-1])))
        at = nn.functional.pad(at, (1, -1))[..., None].expand_as(x)  # that of the column before
        starts = (context.layout.index_or_range() == 0).expand(len(x), -1)
        return rows.gather(1, at).masked_fill(starts[..., None], 0)

    def flops_per_token(self, length: int) -> float:
        return 0.0  # beside those of its maps

    def new_state(self, batch: int) -> RecurrentState:
        return RecurrentState()

    def state_bytes(self, length: int, itemsize: int) -> int:
        return self.receptance.d_out * itemsize

    def reset_parameters(self) -> None:
        nn.init.constant_(self.shares, self.share)


aw.register(ChannelMix, ChannelMixer)
