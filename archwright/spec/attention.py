"""Attention: how tokens speak to each other."""

from typing import ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import AutoInt, Choice, Probability, Switches
from archwright.spec.masks import Causal, Mask
from archwright.spec.norms import NoNorm, Norm


class AttentionBias(Switches):
    """Which projections carry a bias; `bias = true` or `false` sets all four."""

    query: bool = False
    key: bool = False
    value: bool = False
    out: bool = False


class Attention(Choice):
    """The axis of attention branches."""

    axis: ClassVar[str] = "attention"


class NoAttention(Attention):
    """No attention branch: the layer is a feed-forward alone."""

    kind: Literal["none"] = "none"


class SoftmaxAttention(Attention):
    """softmax(q k^T / sqrt(head_dim)) v in heads (Vaswani et al., 2017), with key-value heads
    shared by groups of query heads (Ainslie et al., 2023)."""

    kind: Literal["softmax"] = "softmax"
    num_heads: AutoInt = "auto"
    """Query heads; auto: dim / head_dim, with heads of at least 64 where head_dim is auto too."""
    num_kv_heads: AutoInt = "auto"
    """Key and value heads; auto: as many as query heads (MHA); 1 is MQA; between them GQA."""
    head_dim: AutoInt = "auto"
    """Width of a head; auto: dim / num_heads."""
    bias: AttentionBias = Field(default_factory=AttentionBias, validate_default=True)
    """Biases of the four projections."""
    qk_norm: Norm = NoNorm()
    """Norm over each head's query and key before positions act (Henry et al., 2020)."""
    mask: Mask = Causal()
    """Which keys a query may see."""
    dropout: Probability = 0.0
    """Share of attention weights dropped in training."""
