"""A gated delta rule from outside the package: a recurrence in chunks, with short convolutions and a state that
decoding carries on.

Next to attention, or in its place with model.attention.kind=none model.position.kind=none:
archwright train modern --parts gated_delta.py model.recurrence.kind=gated_delta
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archwright as aw
from archwright.parts.linear import Linear, set_blocks
from archwright.parts.mixers import Conv, RecurrentMixer, ScanInputs, StateTensor
from archwright.parts.norms import NORMS
from archwright.parts.sharing import LayerInfo
from archwright.parts.short_conv import ShortConv
from archwright.parts.tensor_parallel import TensorParallel
from archwright.spec.choice import Count, Width
from archwright.spec.mixers import Recurrence
from archwright.spec.norms import Norm, RMSNorm


class GatedDelta(Recurrence):
    """S = exp(g) S; S = S + k (beta (v - S^T k))^T; o = S^T q (Yang et al., 2024, Gated Delta Networks, eq. 10)."""

    kind: Literal["gated_delta"] = "gated_delta"
    takes: ClassVar[frozenset[str]] = frozenset({"segment_ids", "padding_mask"})
    num_heads: Count = 2
    """Heads, each with its own state."""
    head_dim: Width = 16
    """Width of a head's query, key and value; its state is head_dim x head_dim."""
    conv_width: Count = 4
    """Tokens that the convolutions of queries, keys and values read."""
    norm: Norm = RMSNorm()
    """Norm over the result of each head, before its gate."""


class GatedDeltaRule(RecurrentMixer):
    """out(norm(o) silu(gate(x))) in heads, with q, k, v = silu(conv(W x)), q and k of length 1, q / sqrt(head_dim).

    For each head g = -exp(log_rate) softplus(decay(x) + decay_bias) and beta = sigmoid(write(x)).
    """

    def __init__(self, spec: GatedDelta, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        self.num_heads, self.head_dim = spec.num_heads, spec.head_dim
        size = spec.num_heads * spec.head_dim
        self.query = Linear(dim, size, deepnorm=False)
        self.key = Linear(dim, size, deepnorm=False)
        self.value, self.gate = Linear(dim, size), Linear(dim, size)
        self.decay, self.write = Linear(dim, self.num_heads), Linear(dim, self.num_heads)
        self.query_conv, self.key_conv, self.value_conv = (
            ShortConv(size, spec.conv_width) for _ in range(3)
        )
        self.log_rate = nn.Parameter(torch.empty(self.num_heads))
        self.decay_bias = nn.Parameter(torch.empty(self.num_heads))
        self.norm: nn.Module = NORMS.make(spec.norm, self.head_dim)
        self.out = Linear(size, dim, is_residual_output=True)
        set_blocks(self.num_heads, *self.inputs, self.out)

    @property
    def inputs(self) -> list[Linear]:
        return [self.query, self.key, self.value, self.gate, self.decay, self.write]

    @property
    def tensor_parallel(self) -> TensorParallel:
        return self.parallel_by_heads({"log_rate": 0, "decay_bias": 0})

    def state_tensors(self) -> dict[str, StateTensor]:
        shape = (self.num_heads, self.head_dim, self.head_dim)
        return {"state": StateTensor(shape, blocks=self.num_heads)}

    def project(self, x: Tensor, projected: Sequence[Tensor], conv: Conv) -> ScanInputs:
        q, k, v, gate, decay, write = projected
        q, k, v = (
            F.silu(conv(f"{name}_conv", y)).unflatten(-1, (self.num_heads, -1))
            for name, y in (("query", q), ("key", k), ("value", v))
        )  # [batch, length, heads, head_dim]
        q, k = (F.normalize(y, dim=-1) for y in (q, k))
        g = -F.softplus(decay + self.decay_bias) * self.log_rate.exp()  # [batch, length, heads]
        return ScanInputs(q * self.head_dim**-0.5, k, v, g, write.sigmoid(), gate)

    def output(self, mixed: Tensor, inputs: ScanInputs) -> Tensor:
        gate = F.silu(inputs.gate).view_as(mixed)
        out: Tensor = self.out((self.norm(mixed) * gate).flatten(-2))  # [batch, length, dim]
        return out

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.log_rate, -2.0, 1.0)
        nn.init.ones_(self.decay_bias)


aw.register(GatedDelta, GatedDeltaRule)
