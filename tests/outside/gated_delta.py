"""A gated delta rule from outside the package: a recurrence, token by token, with a state that decoding carries on.

Beside attention, or in its place with model.attention.kind=none model.position.kind=none:
archwright train modern --parts gated_delta.py model.recurrence.kind=gated_delta
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archwright as aw
from archwright.parts.context import Context
from archwright.parts.linear import Linear
from archwright.parts.mixers import Mixer
from archwright.parts.norms import NORMS
from archwright.parts.sharing import LayerInfo
from archwright.parts.states import RecurrentState
from archwright.spec.choice import Count, Width
from archwright.spec.mixers import Recurrence
from archwright.spec.norms import Norm, RMSNorm


class GatedDelta(Recurrence):
    """S = exp(g) S; S = S + k (beta (v - S^T k))^T; o = S^T q (Yang et al., 2024, Gated Delta Networks, eq. 10)."""

    kind: Literal["gated_delta"] = "gated_delta"
    takes: ClassVar[frozenset[str]] = frozenset({"segment_ids", "padding_mask"})
    num_heads: Count = 2
    """Heads, each with a state of its own."""
    head_dim: Width = 16
    """Width of a head's query, key and value; its state is head_dim x head_dim."""
    norm: Norm = RMSNorm()
    """Norm over the result of each head, before its gate."""


class GatedDeltaRule(Mixer):
    """out(norm(o) silu(gate(x))), o = S^T q / sqrt(d), S = e^g S + k (beta (v - e^g S^T k))^T, in float32 or wider.

    q and k have length 1; g = -exp(a) softplus(decay(x) + b) and beta = sigmoid(write(x)), one for each head. A state
    S [batch, heads, d, d] begins with zeros in each document, and padding leaves it as it is.
    """

    def __init__(self, spec: GatedDelta, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        self.heads, self.width = spec.num_heads, spec.head_dim
        size = self.heads * self.width
        self.query = Linear(dim, size, deepnorm=False)
        self.key = Linear(dim, size, deepnorm=False)
        self.value, self.gate = Linear(dim, size), Linear(dim, size)
        self.decay, self.write = Linear(dim, self.heads), Linear(dim, self.heads)
        self.log_rate = nn.Parameter(torch.empty(self.heads))
        self.decay_bias = nn.Parameter(torch.empty(self.heads))
        self.norm: nn.Module = NORMS.make(spec.norm, self.width)
        self.out = Linear(size, dim, is_residual_output=True)

    @property
    def inputs(self) -> list[Linear]:
        return [self.query, self.key, self.value, self.gate, self.decay, self.write]

    def forward(
        self,
        x: Tensor,
        context: Context,
        state: RecurrentState | None = None,
        projected: Sequence[Tensor] | None = None,
    ) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        maps = [m(x) for m in self.inputs] if projected is None else projected
        heads = [
            y.to(dtype).unflatten(-1, (self.heads, -1)) for y in maps
        ]  # [batch, length, heads, ...]
        q, k = (F.normalize(y, dim=-1) for y in heads[:2])
        v, gate, decay, write = heads[2:]
        rate = F.softplus(decay[..., 0] + self.decay_bias) * self.log_rate.exp()
        keep, beta = torch.exp(-rate), write.sigmoid()  # [batch, length, heads] and [..., heads, 1]
        matrix = None if state is None else state.get("matrix")
        if matrix is None:
            matrix = q.new_zeros(len(x), self.heads, self.width, self.width)
        starts, real = self._starts(context), context.layout.padding_mask
        found = []
        for t in range(x.shape[1]):
            with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):
                kept = matrix * keep[:, t].masked_fill(starts[:, t], 0)[..., None, None]
                key, value = (
                    k[:, t, :, :, None],
                    v[:, t, :, None],
                )  # [batch, heads, d, 1], [..., 1, d]
                error = beta[:, t, :, None] * (value - key.mT @ kept)
                new = kept + key @ error
                found.append((q[:, t, :, None] @ new)[:, :, 0])  # [batch, heads, d]
            matrix = new if real is None else torch.where(real[:, t, None, None, None], new, matrix)
        if state is not None:
            state.update(matrix=matrix)
        mixed = torch.stack(found, 1) * self.width**-0.5  # [batch, length, heads, d]
        out: Tensor = self.out((self.norm(mixed) * F.silu(gate)).flatten(-2).to(x.dtype))
        return out

    def _starts(self, context: Context) -> Tensor:
        """Return where documents begin, [batch, length, 1]: there the state before is forgotten."""
        starts = context.layout.index_or_range() == 0
        return starts.expand(context.batch, -1)[..., None]

    def new_state(self, batch: int) -> RecurrentState:
        return RecurrentState()

    def state_bytes(self, length: int, itemsize: int) -> int:
        return 4 * self.heads * self.width**2  # float32, whatever the weights are

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.log_rate, -2.0, 1.0)
        nn.init.ones_(self.decay_bias)


aw.register(GatedDelta, GatedDeltaRule)
