"""Embeddings of tokens that are added to values."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import AutoWidth, Choice, ModelSizes, ScaleDown


class ValueEmbedding(Choice):
    """The axis of value embeddings, added to values by token id. Each layer has a table of shape [vocab_size,
    num_kv_heads * value_head_dim] and looks up its row e for each token."""

    axis: ClassVar[str] = "value_embedding"

    def num_parameters(self, num_kv_heads: int) -> int:
        """Return the number of parameters, without the table, of resolved values."""
        return 0


class NoValueEmbedding(ValueEmbedding):
    """No value embedding: values depend only on x."""

    kind: Literal["none"] = "none"


class ScaledValueEmbedding(ValueEmbedding):
    """v = a v + b e, with learned scalars a and b per layer, initially 0.5 (Jordan et al., 2024, modded-nanogpt; after
    Zhou et al., 2024, Value Residual Learning)."""

    kind: Literal["scaled"] = "scaled"

    def num_parameters(self, num_kv_heads: int) -> int:
        return 2


class GatedValueEmbedding(ValueEmbedding):
    """v = v + 2 sigmoid(gate(x)) e, with a gate per key-value head; the factor of e is initially 1 (Karpathy, 2025,
    nanochat)."""

    kind: Literal["gated"] = "gated"
    channels: AutoWidth = Field("auto", examples=[12])
    """Number of leading coordinates of x that the gate reads; auto: min(32, dim)."""

    def width(self, dim: int) -> int:
        """Return the number of coordinates that the gate reads in a model of width `dim`."""
        return min(32, dim) if self.channels == "auto" else self.channels

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        return {"channels": self.width(sizes.dim)}

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        if self.width(sizes.dim) > sizes.dim:
            yield f"channels: found {self.channels}; expected at most dim = {sizes.dim}"

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        return {"channels": "auto"}

    def num_parameters(self, num_kv_heads: int) -> int:
        return int(self.channels) * num_kv_heads
