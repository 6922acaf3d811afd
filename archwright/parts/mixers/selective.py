"""Mixers with a state for each channel: Mamba's selective scan and Griffin's RG-LRU."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archwright.parts.diagonal_scan import DIAGONAL_SCANS, diagonal_scan
from archwright.parts.linear import Linear, set_blocks
from archwright.parts.mixers.recurrent import (
    Boundaries,
    Conv,
    RecurrentMixer,
    StateTensor,
    init_steps,
)
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

    dt = step_up(norm(step_down(u))), B = norm(write(u)), C = norm(read(u)) and A = -exp(log_rates). At first D = 1 and
    A = -(1, 2, ...).

    Ranks of a tensor group compute this branch in full: step_down, write and read are sums over all channels.
    Gu and Dao, 2023, Mamba, algorithm 2 and section 3.6.
    """

    scans = DIAGONAL_SCANS
    chunk_size = 16  # states of more tokens exceed the caches of a processor

    def __init__(self, spec: spec.SelectiveScan, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        inner, rank = int(spec.inner_dim), int(spec.step_rank)
        self.inner_dim, self.state_dim = inner, spec.state_dim
        self.value = Linear(dim, inner, bias=spec.bias)
        self.gate = Linear(dim, inner, bias=spec.bias, deepnorm=False)
        self.value_conv = ShortConv(inner, spec.conv_width, bias=spec.conv_bias)
        self.step_down, self.write, self.read = (
            Linear(inner, size, deepnorm=False) for size in (rank, self.state_dim, self.state_dim)
        )
        self.step_norm: nn.Module = NORMS.make(spec.scan_norm, rank)
        self.write_norm: nn.Module = NORMS.make(spec.scan_norm, self.state_dim)
        self.read_norm: nn.Module = NORMS.make(spec.scan_norm, self.state_dim)
        self.step_up = StepSize(rank, inner)
        self.log_rates = nn.Parameter(torch.empty(inner, self.state_dim))
        self.skip = nn.Parameter(torch.empty(inner))
        self.out = Linear(inner, dim, bias=spec.bias, is_residual_output=True)
        set_blocks(1, *self.inputs, self.step_down, self.write, self.read, self.out)
        self.value_conv.is_split = False
        self.roles = {"log_rates": "vector"}
        self.reset_parameters()

    @property
    def inputs(self) -> list[Linear]:
        return [self.value, self.gate]

    def state_tensors(self) -> dict[str, StateTensor]:
        return {"state": StateTensor((self.state_dim, self.inner_dim))}

    def project(self, x: Tensor, projected: Sequence[Tensor], conv: Conv) -> Selection:
        value, gate = projected
        u = F.silu(conv("value_conv", value))
        steps = self.step_up(self.step_norm(self.step_down(u)))
        writes, reads = self.write_norm(self.write(u)), self.read_norm(self.read(u))
        return Selection(u, steps, writes, reads, gate)

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

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.log_rates.copy_(torch.arange(1, self.state_dim + 1).log().expand_as(self.log_rates))
        nn.init.ones_(self.skip)


class StepSize(nn.Module):
    """dt = softplus(W x + b), with W uniform within 1 / sqrt(rank) and dt log-uniform in `STEPS` at first."""

    def __init__(self, rank: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, rank))
        self.bias = nn.Parameter(torch.empty(channels))
        self.roles = {"weight": "matrix"}
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(upcast(F.linear(x, self.weight)) + self.bias)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, -1, 1).div_(self.weight.shape[1] ** 0.5)
        init_steps(self.bias, *STEPS)


class Gated(NamedTuple):
    """Inputs of an RG-LRU, [batch, length, channels] each."""

    x: Tensor
    """i x"""
    log_decay: Tensor
    gate: Tensor
    """gelu(y)"""


class RGLRU(RecurrentMixer):
    """out(h gelu(gate(x))) with h = a h + sqrt(1 - a^2) (i u) and u = conv(value(x)).

    log a = -8 softplus(rates) decay_gate(u) and i = input_gate(u). At the first token of a text the root is 1. At first
    exp(-softplus(rates))^2 is uniform between the squares of `DECAYS`.
    De et al., 2024, Griffin, section 2.4; google-deepmind/recurrentgemma.
    """

    scans = DIAGONAL_SCANS

    def __init__(self, spec: spec.RGLRU, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        self.num_heads, self.head_dim = int(spec.num_heads), int(spec.head_dim)
        inner = self.num_heads * self.head_dim
        self.value = Linear(dim, inner, bias=True)
        self.gate = Linear(dim, inner, bias=True, deepnorm=False)
        self.value_conv = ShortConv(inner, spec.conv_width, bias=True, variance=0.01)
        self.input_gate, self.decay_gate = (
            HeadGate(self.num_heads, self.head_dim) for _ in range(2)
        )
        self.rates = nn.Parameter(torch.empty(inner))
        self.out = Linear(inner, dim, bias=True, is_residual_output=True)
        set_blocks(self.num_heads, *self.inputs, self.out)
        self.reset_parameters()

    @property
    def inputs(self) -> list[Linear]:
        return [self.value, self.gate]

    @property
    def tensor_parallel(self) -> TensorParallel:
        gates = (
            f"{gate}_gate.{name}" for gate in ("input", "decay") for name in ("weight", "bias")
        )
        return self.parallel_by_heads(dict.fromkeys((*gates, "rates"), 0))

    def state_tensors(self) -> dict[str, StateTensor]:
        return {"state": StateTensor((self.num_heads, self.head_dim), blocks=self.num_heads)}

    def project(self, x: Tensor, projected: Sequence[Tensor], conv: Conv) -> Gated:
        value, gate = projected
        u = conv("value_conv", value)
        i, r = self.input_gate(u), self.decay_gate(u)
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

    @torch.no_grad()
    def reset_parameters(self) -> None:
        least, largest = (decay**2 for decay in DECAYS)
        squares = nn.init.uniform_(self.rates, least, largest)
        self.rates.copy_(squares.rsqrt().sub(1).log())  # softplus(rates) = -log(squares) / 2


class HeadGate(nn.Module):
    """sigmoid(x W + b) in heads, with a matrix W for each, of variance 0.01 / width at first."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, width, width))
        self.bias = nn.Parameter(torch.empty(heads, width))
        self.roles = {"weight": "matrix", "bias": "vector"}
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, self.weight.shape[:2])  # [batch, length, heads, width]
        y = torch.einsum("...hi,hij->...hj", heads, self.weight) + self.bias
        # [batch, length, heads, width] -> [batch, length, channels]
        return upcast(y).sigmoid().flatten(-2)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, 0, (0.01 / self.weight.shape[1]) ** 0.5)
        nn.init.zeros_(self.bias)


def _bounded_root(x: Tensor) -> Tensor:
    """Return sqrt(x) with gradients of at most 1,000; decays near 1 would give infinite ones."""
    constant = x.detach()
    slope = 0.5 * constant.clamp(min=STEEPEST).rsqrt()
    return constant.sqrt() + (x - constant) * slope
