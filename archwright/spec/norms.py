"""Norms: what brings a vector back to a fixed scale."""

from typing import ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import Choice


class Norm(Choice):
    """The axis of norms."""

    axis: ClassVar[str] = "norm"


class NoNorm(Norm):
    """No norm: y = x."""

    kind: Literal["none"] = "none"


class LayerNorm(Norm):
    """Centre and scale: y = (x - mean) / sqrt(var + eps) * weight + bias (Ba et al., 2016)."""

    kind: Literal["layer"] = "layer"
    eps: float = Field(1e-5, gt=0)
    """Added to the variance."""
    bias: bool = True
    """Learn an offset beside the weight."""


class RMSNorm(Norm):
    """Scale only: y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, 2019)."""

    kind: Literal["rms"] = "rms"
    eps: float = Field(1e-5, gt=0)
    """Added to the mean square."""
