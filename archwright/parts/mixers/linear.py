"""Linear recurrences: RetNet, GLA, SSD (Mamba-2), DeltaNet, gated DeltaNet and KDA."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archwright.parts.linear import Linear, set_blocks
from archwright.parts.mixers.recurrent import Conv, RecurrentMixer, StateTensor, init_steps
from archwright.parts.norms import NORMS, upcast
from archwright.parts.registry import Registry
from archwright.parts.scans import ScanInputs
from archwright.parts.sharing import LayerInfo
from archwright.parts.short_conv import ShortConv
from archwright.parts.tensor_parallel import TensorParallel
from archwright.spec import recurrences as spec

L2_EPS = 1e-6
"""Added to the squared length of queries and keys, as in the published kernels."""
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "sigmoid": torch.sigmoid}

Decays = tuple[Tensor | None, Tensor | None]
"""Log of decays, as `linear_scan` takes it, and step sizes [batch, length, heads]; None: no such tensor."""


class Decay(nn.Module):
    """Base of decays, here none: g = 0.

    Args:
        dim: Width of x.
        num_heads: Heads of the state.
        key_dim: Key channels of a head.
        layer: Place of the layer.
        bias: Whether maps of x have a bias.

    Attributes:
        per_head: Parameters and buffers with a row per head, for `TensorParallel.per_head`.
    """

    per_head: tuple[str, ...] = ()

    def __init__(
        self, spec: Any, dim: int, num_heads: int, key_dim: int, layer: LayerInfo, *, bias: bool
    ) -> None:
        super().__init__()
        self.spec, self.key_dim = spec, key_dim
        self.build(dim, num_heads, layer, bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set parameters and buffers to their initial values; default: none."""

    def build(self, dim: int, num_heads: int, layer: LayerInfo, bias: bool) -> None:
        """Add parameters, buffers and maps; default: none."""

    @property
    def inputs(self) -> list[Linear]:
        """Maps that read x; `forward` receives their results."""
        return []

    def forward(self, projected: Sequence[Tensor]) -> Decays:
        """Return the decays of all tokens, and their steps."""
        return None, None


class FixedDecay(Decay):
    """exp(g) = 1 - 2^(-4 - h), or g = -2^(-8 h / H), for head h of H, from 1."""

    per_head = ("head",)

    def build(self, dim: int, num_heads: int, layer: LayerInfo, bias: bool) -> None:
        self.number, self.depth_factor = num_heads, 1.0
        if self.spec.slower_with_depth:  # with the published guards against 0 / 0 and a decay of 1
            self.depth_factor = 1 - (layer.number - 1) / (layer.num_layers - 1 + 1e-5) + 1e-5
        # Integers: a cast of the model to bfloat16 would round decays.
        self.register_buffer("head", torch.empty(num_heads, dtype=torch.long), persistent=False)
        self.head: Tensor

    def forward(self, projected: Sequence[Tensor]) -> Decays:
        head = self.head.double()
        retention = self.spec.rates == "retention"
        rates = (
            -torch.log1p(-(2.0 ** (-4 - head))) if retention else 2.0 ** (-8 * head / self.number)
        )
        return -rates * self.depth_factor, None

    def reset_parameters(self) -> None:
        self.head.copy_(torch.arange(1, self.number + 1))


class _Steps(Decay):
    """Base of decays with a learned rate of each head and a bias of step sizes.

    Initial rates are uniform, initial steps log-uniform; the bias is the inverse softplus of the step.
    """

    per_head = ("log_rate", "step_bias")

    def build(self, dim: int, num_heads: int, layer: LayerInfo, bias: bool) -> None:
        self.log_rate = nn.Parameter(torch.empty(num_heads))
        # [heads] or [heads * key_dim]
        self.step_bias = nn.Parameter(
            torch.empty(num_heads * (self.key_dim if self.spec.per_channel else 1))
        )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        spec = self.spec
        rate = self.log_rate.uniform_(spec.least_rate, spec.most_rate)
        rate.clamp_(min=torch.finfo(rate.dtype).tiny).log_()  # a rate of 0 has no log
        init_steps(self.step_bias, spec.least_step, spec.most_step)


class HeadDecay(_Steps):
    """g = -rate step, step = softplus(W x + b)."""

    def build(self, dim: int, num_heads: int, layer: LayerInfo, bias: bool) -> None:
        super().build(dim, num_heads, layer, bias)
        self.step = Linear(dim, num_heads, bias=bias, deepnorm=False)
        set_blocks(num_heads, self.step)

    @property
    def inputs(self) -> list[Linear]:
        return [self.step]

    def forward(self, projected: Sequence[Tensor]) -> Decays:
        step = F.softplus(upcast(projected[0]) + self.step_bias)  # [batch, length, heads]
        least, most = self.spec.clamp_min, self.spec.clamp_max
        if least or most != "none":
            step = step.clamp(least, None if most == "none" else most)
        return -upcast(self.log_rate).exp() * step, step


class _ChannelMap(Decay):
    """Base of decays per key channel from W x or W_2 W_1 x."""

    has_bias = False
    """True for a bias in all models."""

    def build(self, dim: int, num_heads: int, layer: LayerInfo, bias: bool) -> None:
        super().build(dim, num_heads, layer, bias)
        size, bias = num_heads * self.key_dim, bias or self.has_bias
        self.down, self.up = _low_rank(dim, size, self.spec.rank, num_heads, bias=bias)

    @property
    def inputs(self) -> list[Linear]:
        return [self.down or self.up]

    def forward(self, projected: Sequence[Tensor]) -> Decays:
        y = upcast(projected[0] if self.down is None else self.up(projected[0]))
        return self.log_decay(y), None

    def log_decay(self, y: Tensor) -> Tensor:
        """Return g [batch, length, heads, key_dim] of the map's result [batch, length, heads * key_dim]."""
        raise NotImplementedError


class ChannelDecay(_ChannelMap, _Steps):
    """g = -rate softplus(f(x) + b), or lower_bound sigmoid(rate (f(x) + b)), f(x) = W x or W_2 W_1 x."""

    def log_decay(self, y: Tensor) -> Tensor:
        # [batch, length, heads, key_dim]
        y = (y + self.step_bias).unflatten(-1, (-1, self.key_dim))
        rate, bound = upcast(self.log_rate).exp()[:, None], self.spec.lower_bound
        g: Tensor = -rate * F.softplus(y) if bound == "none" else bound * torch.sigmoid(rate * y)
        return g


class SigmoidDecay(_ChannelMap):
    """g = log sigmoid(W_2 W_1 x + b) / divisor."""

    has_bias = True

    def log_decay(self, y: Tensor) -> Tensor:
        # [batch, length, heads, key_dim]
        g: Tensor = F.logsigmoid(y).unflatten(-1, (-1, self.key_dim)) / self.spec.divisor
        return g


DECAYS = Registry(
    spec.Decay,
    "(spec, dim, num_heads, key_dim, layer, bias=...)",
    Decay,
    {
        spec.NoDecay: Decay,
        spec.FixedDecay: FixedDecay,
        spec.HeadDecay: HeadDecay,
        spec.ChannelDecay: ChannelDecay,
        spec.SigmoidDecay: SigmoidDecay,
    },
)
"""Subclasses of `Decay`."""


class LinearRecurrence(RecurrentMixer):
    """y = out(norm(o + D v) gate(x)), with o of a `linear_scan` of q, k, v = activation(conv(W x)).

    Shapes: q and k [batch, length, key_heads, key_dim]; v and o [batch, length, heads, value_dim]; the state
    [batch, heads, key_dim, value_dim].
    """

    def __init__(self, spec: spec.LinearRecurrence, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        sizes = spec.heads(dim)
        heads, self.num_key_heads, self.key_dim, self.value_dim = sizes.values()
        self.spec, self.num_heads, self.chunk_size = spec, heads, spec.chunk_size
        keys, values, bias = self.num_key_heads * self.key_dim, heads * self.value_dim, spec.bias
        self.query = Linear(dim, keys, bias=bias, deepnorm=False)
        self.key = Linear(dim, keys, bias=bias, deepnorm=False)
        self.value = Linear(dim, values, bias=bias)
        self.decay: Decay = DECAYS.make(spec.decay, dim, heads, self.key_dim, layer, bias=bias)
        self.write = (
            Linear(dim, heads, bias=bias, deepnorm=False) if spec.write == "delta" else None
        )
        self.gate_down, self.gate = None, None
        if spec.gate != "none":
            self.gate_down, self.gate = _low_rank(dim, values, spec.gate_rank, heads, bias=bias)
        self.query_conv, self.key_conv, self.value_conv = (
            None
            if spec.conv_width == "none"
            else ShortConv(width, spec.conv_width, bias=spec.conv_bias)
            for width in (keys, keys, values)
        )
        self.skip = nn.Parameter(torch.empty(heads)) if spec.skip else None
        over: dict[str, tuple[int, dict[str, int]]] = {
            "head": (self.value_dim, {}),
            "group": (values // self.num_key_heads, {"heads": self.num_key_heads}),
            "all": (values, {}),
        }
        width, groups = over[spec.out_norm_over]
        self.norm_width = width
        self.norm: nn.Module = NORMS.make(spec.out_norm, width, **groups)
        self.out = Linear(values, dim, bias=bias, is_residual_output=True)
        set_blocks(heads, self.value, self.write, self.out)
        set_blocks(self.num_key_heads, self.query, self.key)
        if self.num_key_heads == 1:  # a single key is replicated, and so is its convolution
            for conv in (self.query_conv, self.key_conv):
                if conv is not None:
                    conv.is_split = False
        self.reset_parameters()

    @property
    def inputs(self) -> list[Linear]:
        further = (self.write, self.gate_down or self.gate)
        maps = (self.query, self.key, self.value, *further)
        return [m for m in maps if m is not None] + self.decay.inputs

    @property
    def tensor_parallel(self) -> TensorParallel | None:
        normed = not self.spec.out_norm.is_none
        over = self.spec.out_norm_over
        # A norm over several heads needs all of them on one rank.
        if normed and (over == "all" or (over == "group" and self.num_key_heads == 1)):
            return None
        per_head = {f"decay.{name}": 0 for name in self.decay.per_head}
        if self.skip is not None:
            per_head["skip"] = 0
        if over == "group":
            per_head |= {f"norm.{name}": 0 for name, _ in self.norm.named_parameters()}
        sizes = {"num_heads": self.num_heads}
        if self.num_key_heads > 1:
            sizes["num_key_heads"] = self.num_key_heads
        return TensorParallel(sizes, per_head)

    def state_tensors(self) -> dict[str, StateTensor]:
        shape = (self.num_heads, self.key_dim, self.value_dim)
        # A single key head is replicated, and ranks split the heads of values.
        blocks = self.num_key_heads if self.num_key_heads > 1 else self.num_heads
        return {"state": StateTensor(shape, blocks=blocks)}

    def project(self, x: Tensor, projected: Sequence[Tensor], conv: Conv) -> ScanInputs:
        spec = self.spec
        factors = dict(spec.multipliers)
        names = ["query", "key", "value"] + ["write"] * (self.write is not None)
        names += ["gate"] * (self.gate is not None) + ["decay"] * len(self.decay.inputs)
        projected = [
            y if (factor := factors.get(name, 1.0)) == 1 else y * factor
            for name, y in zip(names, projected, strict=True)
        ]
        left = projected[3:]
        mixed = []
        for name, y in zip(("query", "key", "value"), projected, strict=False):
            y = y if spec.conv_width == "none" else conv(f"{name}_conv", y)
            y = y if spec.activation == "none" else FUNCTIONS[spec.activation](y)
            # [batch, length, heads, key_dim or value_dim]
            mixed.append(y.unflatten(-1, (-1, self.value_dim if name == "value" else self.key_dim)))
        q, k, v = mixed
        if spec.qk_norm == "l2":
            q, k = (_unit(y) for y in (q, k))
        if spec.scale == "sqrt":
            q = q * self.key_dim**-0.5
        beta = None if self.write is None else upcast(left.pop(0)).sigmoid() * spec.beta_max
        gate = None if self.gate is None else left.pop(0)
        if self.gate is not None and self.gate_down is not None:
            gate = self.gate(gate)
        log_decay, step = self.decay(left)
        written = v
        if spec.write == "step":
            assert step is not None
            written = v * step[..., None].to(v.dtype)
        return ScanInputs(q, k, written, log_decay, beta, (v, gate))

    def output(self, mixed: Tensor, inputs: ScanInputs) -> Tensor:
        v, gate = inputs.gate
        if self.skip is not None:
            mixed = mixed + self.skip.to(v.dtype)[:, None] * v
        mixed = mixed.flatten(-2)  # [batch, length, heads * value_dim]
        if gate is not None:
            gate = FUNCTIONS[self.spec.gate](gate)
        if gate is not None and self.spec.gate_position == "before":
            mixed, gate = mixed * gate, None
        # Each norm reads one head, one group of heads or all: [batch, length, groups, width].
        normed = self.norm(mixed.unflatten(-1, (-1, self.norm_width))).flatten(-2)
        out: Tensor = self.out(normed if gate is None else normed * gate)
        return out  # [batch, length, dim]

    def reset_parameters(self) -> None:
        if self.skip is not None:
            nn.init.ones_(self.skip)


def _low_rank(
    dim: int, size: int, rank: int | str, num_heads: int, *, bias: bool
) -> tuple[Linear | None, Linear]:
    """Return W_1 and W_2 of W_2 W_1 x, or None and W of W x; the last one is split by heads."""
    down = None if rank == "none" else Linear(dim, int(rank), deepnorm=False)
    up = Linear(dim if rank == "none" else int(rank), size, bias=bias, deepnorm=False)
    set_blocks(1, down)
    set_blocks(num_heads, up)
    return down, up


def _unit(x: Tensor) -> Tensor:
    """Return x / |x| over the last axis, computed in float32 or wider."""
    y = upcast(x)
    return (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + L2_EPS)).to(x.dtype)
