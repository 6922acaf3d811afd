"""Time mix of RWKV-7: a state with a decay per channel that forgets and writes independently."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archwright.parts.context import Context
from archwright.parts.linear import Linear, set_blocks
from archwright.parts.mixers.recurrent import Boundaries, Conv, RecurrentMixer, StateTensor
from archwright.parts.norms import LayerNorm, upcast
from archwright.parts.rank_one_scan import RANK_ONE_SCANS, rank_one_scan
from archwright.parts.sharing import LayerInfo
from archwright.parts.short_conv import TokenShift
from archwright.parts.tensor_parallel import TensorParallel
from archwright.spec import recurrences as spec

STRONGEST = math.exp(-0.5)
"""Largest decay rate: the log of a decay lies between -exp(-1/2) and 0."""
POWERS = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)
"""Initial powers of the token shifts of r, w, k, v, a and g."""


class Vectors(NamedTuple):
    """Vectors of each token, [batch, length, heads, head_dim], and the gate [batch, length, heads * head_dim]."""

    r: Tensor
    log_decay: Tensor
    k: Tensor
    v: Tensor
    removed: Tensor
    """Direction of the removed value, of length 1."""
    rate: Tensor
    """In-context learning rate, in (0, 1)."""
    gate: Tensor
    share: Tensor | None
    """Share of the first layer's value; None in the first layer."""


class RWKV7(RecurrentMixer):
    """y = out((norm(o) + (r . (bonus * k)) v) * gate) in heads, with o from `rank_one_scan`.

    Each of r, w, k, v, a and g reads x + m (x' - x), x' the token before, with a learned m [dim]. For u a low-rank map:

        log w = -exp(-1/2) sigmoid(decay_bias + up(tanh(down(x_w))))     a = sigmoid(rate_bias + u_a(x_a))
        h = K x_k * key_scale, of length 1 in each head                  k = K x_k * (1 + (a - 1) key_rate)
        v = V x_v + sigmoid(share_bias + u_v(x_v)) (v_1 - V x_v)         gate = up(sigmoid(down(x_g)))
        S = diag(w) S - (a * h) (h^T S) + k v^T                          o = S^T r

    v_1 is the first layer's v. Shapes: x and y [batch, length, dim]. Peng et al., 2025, RWKV-7, section 4.2.

    Biases, shares, scales and the norm start as in the published code. The matrices come from the model's
    initialization, with a tenth of it for K and for each `up`; the published code starts each `down` and `out` from 0.
    """

    scans = RANK_ONE_SCANS

    def __init__(self, spec: spec.RWKV7, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        heads, self.head_dim = int(spec.num_heads), int(spec.head_dim)
        self.num_heads, size = heads, heads * self.head_dim
        self.layer, first = layer, layer.alike[0]
        self.shift = TokenShift(dim)
        self.shares = nn.Parameter(torch.empty(len(POWERS), dim))
        self.receptance, self.key = (Linear(dim, size, deepnorm=False) for _ in range(2))
        self.value = Linear(dim, size)
        self.key.init_gain = 0.1
        self.decay = _low_rank(dim, int(spec.decay_rank), size, heads)
        self.rate = _low_rank(dim, int(spec.rate_rank), size, heads)
        self.gate = _low_rank(dim, int(spec.gate_rank), size, heads)
        # [heads * head_dim] each, and [heads, head_dim]
        self.decay_bias, self.rate_bias, self.key_scale, self.key_rate = (
            nn.Parameter(torch.empty(size)) for _ in range(4)
        )
        self.bonus = nn.Parameter(torch.empty(heads, self.head_dim))
        self.roles = {"shares": "vector", "bonus": "vector"}
        self.share, self.share_bias = None, None
        self.first_value = f"value_of_layer_{first}"
        if layer.number == first:
            self.provides = {self.first_value: size}
        else:
            self.reads_from = {self.first_value: first}
            self.share = _low_rank(dim, int(spec.value_rank), size, heads)
            self.share_bias = nn.Parameter(torch.empty(size))
        self.norm = _HeadNorm(spec.head_norm, self.head_dim, heads, layer)
        self.out = Linear(size, dim, is_residual_output=True)
        set_blocks(heads, self.receptance, self.key, self.value, self.out)
        self.reset_parameters()

    @property
    def tensor_parallel(self) -> TensorParallel:
        names = ["decay_bias", "rate_bias", "key_scale", "key_rate", "bonus"]
        names += ["norm.weight", "norm.bias"] + ["share_bias"] * (self.share_bias is not None)
        sizes = {"num_heads": self.num_heads}
        return TensorParallel(sizes, dict.fromkeys(names, 0), splits_values=True)

    def state_tensors(self) -> dict[str, StateTensor]:
        shape = (self.num_heads, self.head_dim, self.head_dim)
        return {"state": StateTensor(shape, blocks=self.num_heads)}

    def project(self, x: Tensor, projected: Sequence[Tensor], conv: Conv) -> Vectors:
        change = conv("shift", x) - x
        for_r, for_w, for_k, for_v, for_a, for_g = (
            x + change * share for share in self.shares.to(x.dtype)
        )
        decay = upcast(self.decay[1](self.decay[0](for_w).tanh())) + self.decay_bias
        rate = (self.rate[1](self.rate[0](for_a)) + self.rate_bias).sigmoid()
        key = self.key(for_k)
        removed = F.normalize(self._split(key * self.key_scale), dim=-1)
        share = None
        if self.share is not None and self.share_bias is not None:
            share = (self.share[1](self.share[0](for_v)) + self.share_bias).sigmoid()
        return Vectors(
            self._split(self.receptance(for_r)),
            self._split(-STRONGEST * decay.sigmoid()),
            self._split(key * (1 + (rate - 1) * self.key_rate)),
            self._split(self.value(for_v)),
            removed,
            self._split(rate),
            self.gate[1](self.gate[0](for_g).sigmoid()),
            None if share is None else self._split(share),
        )

    def exchange(self, inputs: Vectors, context: Context) -> Vectors:
        if inputs.share is None:
            context.provide(self.first_value, inputs.v)
            return inputs
        first = context.read(self.first_value)
        return inputs._replace(v=inputs.v + (first - inputs.v) * inputs.share)

    def scan(
        self, inputs: Vectors, state: Mapping[str, Tensor], boundaries: Boundaries
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        out, new = rank_one_scan(
            *inputs[:4],
            inputs.removed,
            inputs.removed * inputs.rate,
            state=state["state"],
            chunk_size=self.chunk_size,
            kernel=self.kernel,
            resets=boundaries.resets,
            real=boundaries.real,
        )
        return out, {"state": new}

    def output(self, mixed: Tensor, inputs: Vectors) -> Tensor:
        direct = (inputs.r * inputs.k * self.bonus).sum(-1, keepdim=True) * inputs.v
        # [batch, length, heads, head_dim] -> [batch, length, heads * head_dim]
        out: Tensor = self.out((self.norm(mixed) + direct).flatten(-2) * inputs.gate)
        return out

    def _split(self, x: Tensor) -> Tensor:
        # [batch, length, heads * head_dim] -> [batch, length, heads, head_dim]
        y: Tensor = x.unflatten(-1, (self.num_heads, self.head_dim))
        return y

    @torch.no_grad()
    def reset_parameters(self) -> None:
        number, num_layers = self.layer.number - 1, self.layer.num_layers
        depth, left = number / max(1, num_layers - 1), 1 - number / num_layers
        place = torch.arange(self.shares.shape[-1]) / self.shares.shape[-1]
        for share, power in zip(self.shares, POWERS, strict=True):
            share.copy_(1 - place ** (power * left))
        size = len(self.key_scale)
        line = torch.arange(size) / max(1, size - 1)  # from 0 to 1
        wave = (torch.arange(self.head_dim) / max(1, self.head_dim - 1) * 2 - 1).repeat(
            self.num_heads
        )
        wave = wave * wave.abs()  # from -1 to 1 in each head
        self.decay_bias.copy_(6 * line ** (1 + depth**0.3) - 5.5 + 2.5 * wave)
        self.rate_bias.copy_(0.3 * wave + 0.4 * (line - 0.5) - 0.19)
        self.key_scale.copy_(0.71 - 0.1 * (line - 0.5))
        nn.init.constant_(self.key_rate, 1.02)
        nn.init.constant_(self.bonus, -0.04)
        if self.share_bias is not None:
            self.share_bias.copy_(0.73 - 0.4 * (line - 0.5))


class _HeadNorm(LayerNorm):
    """LayerNorm of each head, with weights that start from (layer / num_layers)^0.7."""

    def __init__(self, spec: Any, head_dim: int, heads: int, layer: LayerInfo) -> None:
        self.first_weight = (layer.number / layer.num_layers) ** 0.7
        super().__init__(spec, head_dim, heads)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        assert self.weight is not None
        nn.init.constant_(self.weight, self.first_weight)


def _low_rank(dim: int, rank: int, size: int, heads: int) -> nn.ModuleList:
    """Return two maps [dim, rank] and [rank, size], the second one split by heads."""
    down, up = Linear(dim, rank, deepnorm=False), Linear(rank, size, deepnorm=False)
    up.init_gain = 0.1
    set_blocks(1, down)
    set_blocks(heads, up)
    return nn.ModuleList((down, up))
