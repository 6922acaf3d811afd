"""Scales of attention scores, and position-dependent scales of queries."""

import math
from collections.abc import Callable
from numbers import Real

import torch
from torch import Tensor

from archwright.parts.registry import Registry
from archwright.spec import scores as spec

Temperature = Callable[[Tensor, torch.dtype], Tensor]
"""Function from position ids [rows, length] and a dtype to factors of queries [rows, length]."""


def sqrt(scale: spec.SqrtScale, head_dim: int, layer_number: int) -> float:
    """dim^-0.5, by default with dim = head_dim."""
    return math.pow(head_dim if scale.dim == "auto" else scale.dim, -0.5)


def inverse(scale: spec.InverseScale, head_dim: int, layer_number: int) -> float:
    """numerator / head_dim."""
    return scale.numerator / head_dim


def inverse_layer(scale: spec.InverseLayerScale, head_dim: int, layer_number: int) -> float:
    """head_dim^-0.5 / n in layer n, counted from 1."""
    return math.pow(head_dim, -0.5) / layer_number


def fixed(scale: spec.FixedScale, head_dim: int, layer_number: int) -> float:
    """The number in the spec."""
    return scale.value


def unscaled(scale: spec.NoScale, head_dim: int, layer_number: int) -> float:
    """1."""
    return 1.0


SCORE_SCALES = Registry(
    spec.ScoreScale,
    "(spec, head_dim, layer_number)",
    Real,
    {
        spec.SqrtScale: sqrt,
        spec.InverseScale: inverse,
        spec.InverseLayerScale: inverse_layer,
        spec.FixedScale: fixed,
        spec.NoScale: unscaled,
    },
)
"""Factor of q k^T in a layer; layers are counted from 1."""


def log_temperature(scale: spec.LogQueryTemperature) -> Temperature:
    """1 + coefficient ln(1 + floor((position + offset) / period))."""

    def factor(position_ids: Tensor, dtype: torch.dtype) -> Tensor:
        steps = (position_ids + scale.offset) // scale.period
        return 1 + scale.coefficient * torch.log1p(steps.to(dtype))

    return factor


QUERY_TEMPERATURES = Registry(
    spec.QueryTemperature, "(spec)", Callable, {spec.LogQueryTemperature: log_temperature}
)
"""Functions that return a `Temperature`, computed in float32 or wider."""
