"""Attention branches: how tokens speak to each other."""

from typing import Any

from archwright.parts.attention.latent import LatentAttention as LatentAttention
from archwright.parts.attention.softmax import KVCache as KVCache
from archwright.parts.attention.softmax import SoftmaxAttention as SoftmaxAttention
from archwright.parts.attention.softmax import score_scale as score_scale
from archwright.spec import attention as spec

ATTENTIONS: dict[type[spec.Attention], Any] = {
    spec.SoftmaxAttention: SoftmaxAttention,
    spec.LatentAttention: LatentAttention,
}
"""Constructed with (spec, dim, norms, rotary, relative, shared), as each says; one from outside with
(spec, dim). Called with (x, view, rotation, memory, projected)."""
