"""Factors of attention scores."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import AutoWidth, Choice, ScaleDown, Tokens


class ScoreScale(Choice):
    """The axis of factors of the scores q k^T."""

    axis: ClassVar[str] = "scale"

    def numbers_of_heads(self, key_dim: int) -> dict[str, Any]:
        """Return numbers for "auto" fields, with queries and keys of width `key_dim`."""
        return {}


class SqrtScale(ScoreScale):
    """dim^-0.5; by default, dim is the head width (Vaswani et al., 2017)."""

    kind: Literal["sqrt"] = "sqrt"
    dim: AutoWidth = Field("auto", examples=[256])
    """Width in the formula; auto: width of a head's query. Gemma 2 and 3 use another (query_pre_attn_scalar)."""

    def numbers_of_heads(self, key_dim: int) -> dict[str, Any]:
        return {"dim": key_dim} if self.dim == "auto" else {}

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        return {"dim": "auto"}


class InverseScale(ScoreScale):
    """numerator / head_dim (Yang et al., 2022, muP)."""

    kind: Literal["inverse"] = "inverse"
    numerator: float = Field(8.0, gt=0)
    """Square root of the head_dim at which this scale equals 1 / sqrt(head_dim)."""


class InverseLayerScale(ScoreScale):
    """head_dim^-0.5 / n in layer n = 1, 2 ... (GPT-2's scale_attn_by_inverse_layer_idx)."""

    kind: Literal["inverse_layer"] = "inverse_layer"


class FixedScale(ScoreScale):
    """A constant (Granite's attention_multiplier)."""

    kind: Literal["fixed"] = "fixed"
    value: float = Field(1.0, gt=0, examples=[0.125])
    """The constant."""


class NoScale(ScoreScale):
    """No scale: q k^T (T5, GPT-Neo)."""

    kind: Literal["none"] = "none"


class QueryTemperature(Choice):
    """The axis of position-dependent factors of queries."""

    axis: ClassVar[str] = "query_temperature"


class NoQueryTemperature(QueryTemperature):
    """No factor: queries of all positions are scaled alike."""

    kind: Literal["none"] = "none"


class LogQueryTemperature(QueryTemperature):
    """1 + coefficient ln(1 + floor((position + offset) / period)) (Llama 4, Ministral 3)."""

    kind: Literal["log"] = "log"
    coefficient: float = Field(0.1, ge=0)
    """Factor of the logarithm."""
    period: Tokens = Field(8192, examples=[64])
    """Tokens per step."""
    offset: int = Field(1, ge=0, le=2**30)
    """Offset of positions, which count from 0: 1 in Llama 4, 0 in Ministral 3."""

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        share = to.context_share
        return {"period": max(8, round(self.period * share))} if share < 1 else {}
