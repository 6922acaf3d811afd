"""Mixers with a state for each channel: Mamba's selective scan and Griffin's RG-LRU."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archwright.parts.diagonal_scan import diagonal_scan
from archwright.parts.linear import Linear, set_blocks
from archwright.parts.mixers.recurrent import Boundaries, Conv, RecurrentMixer, StateTensor
from archwright.parts.norms import NORMS, upcast
from archwright.parts.sharing import LayerInfo
from archwright.parts.short_conv import ShortConv
from archwright.parts.tensor_parallel import TensorParallel
from archwright.spec import selective as spec

STEPS = (1e-3, 1e-1)
"""Least and largest initial dt of Mamba."""
DECAYS = (0.9, 0.999)
"""Least and largest initial exp(-softplus(L)) of the RG-LRU."""
STEEPEST = 1e-6 / 4
"""1 - a^2 below which the gradient of its root stays constant: 1,000."""


class Selection(NamedTuple):
    """Inputs of a selective scan."""

    x: Tensor
    """[batch, length, channels]"""
    steps: Tensor
    """dt [batch, length, channels]"""
    writes: Tensor
    """B [batch, length, entries]"""
    reads: Tensor
    """C [batch, length, entries]"""
    gate: Tensor


class SelectiveScan(RecurrentMixer):
    """out(y silu(gate(x))) with y = S C + D u, S = exp(dt A) S + dt u B^T and u = silu(conv(value(x))).

    dt = softplus(W norm(step(u)) + b), B = norm(write(u)), C = norm(read(u)) and A = -exp(log_rates).

    Initial values: A = -(1, 2, ...), D = 1, W uniform within 1 / sqrt(rank), and b with dt log-uniform in `STEPS`.

    Ranks of a tensor group compute this branch in full: step, write and read are sums over all channels.
    Gu and Dao, 2023, Mamba, algorithm 2 and section 3.6.
    """

    chunk_size = 16  # states of more tokens exceed the caches of a processor

    def __init__(self, spec: spec.SelectiveScan, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        inner, rank = int(spec.inner_dim), int(spec.step_rank)
        self.inner_dim, self.state_dim = inner, spec.state_dim
        self.value, self.gate = (Linear(dim, inner, bias=spec.bias) for _ in range(2))
        self.value_conv = ShortConv(inner, spec.conv_width, bias=spec.conv_bias)
        self.step, self.write, self.read = (
            Linear(inner, size) for size in (rank, self.state_dim, self.state_dim)
        )
        self.step_norm: nn.Module = NORMS.make(spec.scan_norm, rank)
        self.write_norm: nn.Module = NORMS.make(spec.scan_norm, self.state_dim)
        self.read_norm: nn.Module = NORMS.make(spec.scan_norm, self.state_dim)
        self.step_weight = nn.Parameter(torch.empty(inner, rank))
        self.step_bias = nn.Parameter(torch.empty(inner))
        self.log_rates = nn.Parameter(torch.empty(inner, self.state_dim))
        self.skip = nn.Parameter(torch.empty(inner))
        self.out = Linear(inner, dim, bias=spec.bias, is_residual_output=True)
        self.roles = {"step_weight": "matrix", "log_rates": "vector"}

    @property
    def inputs(self) -> list[Linear]:
        return [self.value, self.gate]

    def state_tensors(self) -> dict[str, StateTensor]:
        return {"state": StateTensor((self.state_dim, self.inner_dim))}

    def project(self, x: Tensor, projected: Sequence[Tensor], conv: Conv) -> Selection:
        value, gate = projected
        u = F.silu(conv("value_conv", value))
        low, writes, reads = self.step(u), self.write(u), self.read(u)
        steps = F.linear(self.step_norm(low), self.step_weight)
        steps = F.softplus(upcast(steps) + self.step_bias)
        return Selection(u, steps, self.write_norm(writes), self.read_norm(reads), gate)

    def scan(
        self, inputs: Selection, state: Mapping[str, Tensor], boundaries: Boundaries
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        u, steps, writes, reads, _ = inputs
        y, new = diagonal_scan(
            upcast(u) * steps,
            steps,
            -upcast(self.log_rates).exp(),
            writes,
            reads,
            state=state["state"],
            resets=boundaries.resets,
            real=boundaries.real,
            chunk_size=self.chunk_size,
            kernel=self.kernel,
        )
        return (y + self.skip * u).to(u.dtype), {"state": new}

    def output(self, mixed: Tensor, inputs: Selection) -> Tensor:
        out: Tensor = self.out(mixed * F.silu(inputs.gate))
        return out

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.step_weight, -1, 1).div_(self.step_weight.shape[1] ** 0.5)
        least, largest = map(math.log, STEPS)
        steps = nn.init.uniform_(self.step_bias, least, largest).exp()
        self.step_bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # inverse of softplus
        self.log_rates.copy_(torch.arange(1, self.state_dim + 1).log().expand_as(self.log_rates))
        nn.init.ones_(self.skip)


class Gated(NamedTuple):
    """Inputs of an RG-LRU, [batch, length, channels] each."""

    x: Tensor
    """i x"""
    log_decay: Tensor
    gate: Tensor
    """gelu(y)"""


class RGLRU(RecurrentMixer):
    """out(h gelu(gate(x))) with h = a h + sqrt(1 - a^2) (i u) and u = conv(value(x)).

    log a = -8 softplus(rates) sigmoid(u W_r + b_r) and i = sigmoid(u W_i + b_i), with a matrix W for each head. At the
    first token of a text the root is 1.

    Initial values: exp(-softplus(rates))^2 uniform between the squares of `DECAYS`; gates and convolution of variance
    0.01 / fan-in.
    De et al., 2024, Griffin, section 2.4; google-deepmind/recurrentgemma.
    """

    def __init__(self, spec: spec.RGLRU, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        self.num_heads, self.head_dim = int(spec.num_heads), int(spec.head_dim)
        inner = self.num_heads * self.head_dim
        self.value, self.gate = (Linear(dim, inner, bias=True) for _ in range(2))
        self.value_conv = ShortConv(inner, spec.conv_width, bias=True, variance=0.01)
        heads, width = self.num_heads, self.head_dim
        self.input_weight = nn.Parameter(torch.empty(heads, width, width))
        self.input_bias = nn.Parameter(torch.empty(heads, width))
        self.decay_weight = nn.Parameter(torch.empty(heads, width, width))
        self.decay_bias = nn.Parameter(torch.empty(heads, width))
        self.rates = nn.Parameter(torch.empty(inner))
        self.out = Linear(inner, dim, bias=True, is_residual_output=True)
        set_blocks(heads, *self.inputs, self.out)
        self.roles = {
            **dict.fromkeys(("input_weight", "decay_weight"), "matrix"),
            **dict.fromkeys(("input_bias", "decay_bias"), "vector"),
        }

    @property
    def inputs(self) -> list[Linear]:
        return [self.value, self.gate]

    @property
    def tensor_parallel(self) -> TensorParallel:
        return self.parallel_by_heads(dict.fromkeys((*self.roles, "rates"), 0))

    def state_tensors(self) -> dict[str, StateTensor]:
        return {"state": StateTensor((self.num_heads, self.head_dim), blocks=self.num_heads)}

    def project(self, x: Tensor, projected: Sequence[Tensor], conv: Conv) -> Gated:
        value, gate = projected
        u = conv("value_conv", value)
        heads = u.unflatten(-1, (self.num_heads, -1))  # [batch, length, heads, head_dim]
        i, r = (
            upcast(torch.einsum("...hi,hij->...hj", heads, weight) + bias).sigmoid().flatten(-2)
            for weight, bias in (
                (self.input_weight, self.input_bias),
                (self.decay_weight, self.decay_bias),
            )
        )  # [batch, length, heads * head_dim]
        return Gated(
            i * u, -8 * F.softplus(upcast(self.rates)) * r, F.gelu(gate, approximate="tanh")
        )

    def scan(
        self, inputs: Gated, state: Mapping[str, Tensor], boundaries: Boundaries
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        x, log_decay, gate = inputs
        # Not expm1: logits of published models are then those of the published code, with its rounding.
        factor = _bounded_root(1 - (2 * log_decay).exp())
        factor = factor.masked_fill(boundaries.first[..., None], 1)
        one = x.new_ones(1)
        y, new = diagonal_scan(
            factor * x,
            log_decay,
            one.expand(x.shape[-1], 1),
            one.expand(*x.shape[:2], 1),
            one.expand(*x.shape[:2], 1),
            state=state["state"].flatten(1)[:, None],  # [batch, 1, channels]
            resets=boundaries.resets,
            real=boundaries.real,
            chunk_size=self.chunk_size,
            kernel=self.kernel,
        )
        return y.to(gate.dtype), {"state": new.view_as(state["state"])}

    def output(self, mixed: Tensor, inputs: Gated) -> Tensor:
        out: Tensor = self.out(mixed * inputs.gate)
        return out

    def reset_parameters(self) -> None:
        for weight in (self.input_weight, self.decay_weight):
            nn.init.normal_(weight, 0, (0.01 / self.head_dim) ** 0.5)
        for bias in (self.input_bias, self.decay_bias):
            nn.init.zeros_(bias)
        squares = nn.init.uniform_(self.rates, *(decay**2 for decay in DECAYS))
        self.rates.copy_(squares.rsqrt().sub(1).log())  # softplus(rates) = -log(squares) / 2


def _bounded_root(x: Tensor) -> Tensor:
    """Return sqrt(x), whose gradient is at most 1,000: decays near 1 would give infinite ones."""
    constant = x.detach()
    slope = 0.5 * constant.clamp(min=STEEPEST).rsqrt()
    return constant.sqrt() + (x - constant) * slope
