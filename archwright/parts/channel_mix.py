"""Channel mix of RWKV: a feed-forward that also reads the token before, and therefore has a state."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.context import Context
from archwright.parts.linear import Linear
from archwright.parts.mixers.base import Mixer
from archwright.parts.sharing import LayerInfo
from archwright.parts.short_conv import TokenShift
from archwright.parts.states import RecurrentState
from archwright.parts.tensor_parallel import TensorParallel
from archwright.spec import feedforward as spec


class ChannelMix(Mixer):
    """y = value(relu(key(k))^2), times sigmoid(receptance(r)) if asked, with k and r = x + m (x' - x).

    x' is the real token before in the document, or 0; m [dim] differs between k and r. Shapes: x and y [batch, length,
    dim], hidden values [batch, length, hidden_dim]. Peng et al., 2025, RWKV-7, section 4.3.
    """

    def __init__(self, spec: spec.ChannelMix, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        width = 4 * dim if spec.hidden_dim == "auto" else spec.hidden_dim
        self.shift = TokenShift(dim)
        self.shares = nn.Parameter(torch.empty(1 + spec.receptance, dim))
        self.roles = {"shares": "vector"}
        self.key = Linear(dim, width)
        self.receptance = Linear(dim, dim, deepnorm=False) if spec.receptance else None
        self.value = Linear(width, dim, is_residual_output=True)
        # Deeper layers read more of the token itself.
        self.power = (1 - (layer.number - 1) / layer.num_layers) ** 4
        self.reset_parameters()

    @property
    def tensor_parallel(self) -> TensorParallel | None:
        if self.receptance is not None:  # which multiplies the sum over ranks
            return None
        return TensorParallel({"hidden_dim": self.key.d_out})

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        context: Context,
        state: RecurrentState | None = None,
        projected: Sequence[Tensor] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        tail = None if state is None else state.get("shift")
        before, tail = self.shift(x, context.layout, tail)
        if state is not None:
            state.update(shift=tail)
        key, *receptance = (x + (before - x) * share for share in self.shares.to(x.dtype))
        out: Tensor = self.value(self.key(key).relu().square())
        if self.receptance is not None:
            out = self.receptance(receptance[0]).sigmoid() * out
        return out

    def new_state(self, batch: int) -> RecurrentState:
        return RecurrentState()

    def state_bytes(self, length: int, itemsize: int) -> int:
        return self.shift.channels * itemsize

    @property
    def kept_blocks(self) -> int:
        return 1  # all channels of a token

    @torch.no_grad()
    def reset_parameters(self) -> None:
        place = torch.arange(self.shares.shape[-1]) / self.shares.shape[-1]
        self.shares.copy_((1 - place**self.power).expand_as(self.shares))
