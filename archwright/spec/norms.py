"""Norms: what brings a vector back to a fixed scale."""

from typing import ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import Choice

Weight = Literal["plain", "unit_offset", "none"]
"""Factor of a normed value: w, 1 + w, or none."""


class Norm(Choice):
    """The axis of norms: what brings a vector back to a fixed scale."""

    axis: ClassVar[str] = "norm"

    def num_parameters(self, dim: int) -> int:
        """Return the number of parameters of a norm over `dim` coordinates."""
        return 0


class NoNorm(Norm):
    """No norm: y = x."""

    kind: Literal["none"] = "none"


class LayerNorm(Norm):
    """Centre and scale: y = (x - mean) / sqrt(var + eps) * weight + bias (Ba et al., 2016)."""

    kind: Literal["layer"] = "layer"
    eps: float = Field(1e-5, gt=0)
    """Added to the variance."""
    weight: Weight = "plain"
    """Multiply by w, by 1 + w (Nemotron), or by nothing (OLMo)."""
    bias: bool = True
    """Learn an offset beside the weight."""

    def num_parameters(self, dim: int) -> int:
        return dim * ((self.weight != "none") + self.bias)


class RMSNorm(Norm):
    """Scale only: y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, 2019)."""

    kind: Literal["rms"] = "rms"
    eps: float = Field(1e-5, gt=0)
    """Added to the mean square."""
    weight: Weight = "plain"
    """Multiply by w, by 1 + w (Gemma), or by nothing (Llama 4's query and key norm)."""
    scale_in: Literal["float32", "input_dtype"] = "float32"
    """Dtype of the product with the weight: float32, cast to that of the input afterwards (OLMo 2), or the
    input's own (Llama)."""

    def num_parameters(self, dim: int) -> int:
        return dim * (self.weight != "none")


class DynamicTanh(Norm):
    """A bounded function in place of a norm: y = weight * tanh(alpha x) + bias, with one learned alpha, so that no
    mean is taken over coordinates (Zhu et al., 2025, Transformers without Normalization, section 4)."""

    kind: Literal["dyt"] = "dyt"
    alpha: float = Field(0.5, gt=0)
    """First value of alpha; large models want less, and more before attention than elsewhere."""
    bias: bool = True
    """Learn an offset beside the weight."""

    def num_parameters(self, dim: int) -> int:
        return 1 + dim * (1 + self.bias)
