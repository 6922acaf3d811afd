"""Norms of vectors."""

from typing import ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import Choice

Weight = Literal["plain", "unit_offset", "none"]
"""Factor of a normed value: w, 1 + w, or none."""


class Norm(Choice):
    """The axis of norms, which rescale vectors."""

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
    """Multiply by w (plain), by 1 + w (unit_offset: Nemotron) or by no weight (none: OLMo)."""
    bias: bool = True
    """Add a learned bias."""

    def num_parameters(self, dim: int) -> int:
        return dim * ((self.weight != "none") + self.bias)


class RMSNorm(Norm):
    """Scale only: y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, 2019)."""

    kind: Literal["rms"] = "rms"
    eps: float = Field(1e-5, gt=0)
    """Added to the mean square."""
    weight: Weight = "plain"
    """Multiply by w (plain), by 1 + w (unit_offset: Gemma) or by no weight (none: Llama 4's query and key norm)."""
    scale_in: Literal["float32", "input_dtype"] = "float32"
    """Dtype of the product with the weight. float32: cast to the input's dtype afterwards (OLMo 2); input_dtype: the
    input's dtype (Llama)."""

    def num_parameters(self, dim: int) -> int:
        return dim * (self.weight != "none")


class DynamicTanh(Norm):
    """A bounded function instead of a norm: y = weight * tanh(alpha x) + bias, with one learned alpha and no statistics
    over coordinates (Zhu et al., 2025, Transformers without Normalization, section 4)."""

    kind: Literal["dyt"] = "dyt"
    alpha: float = Field(0.5, gt=0)
    """Initial value of alpha; large models need less, and attention more than other branches."""
    bias: bool = True
    """Add a learned bias."""

    def num_parameters(self, dim: int) -> int:
        return 1 + dim * (1 + self.bias)
