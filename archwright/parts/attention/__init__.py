"""Attention branches: how tokens exchange information."""

from torch import nn

from archwright.parts.attention.latent import LatentAttention as LatentAttention
from archwright.parts.attention.scales import QUERY_TEMPERATURES as QUERY_TEMPERATURES
from archwright.parts.attention.scales import SCORE_SCALES as SCORE_SCALES
from archwright.parts.attention.softmax import KVCache as KVCache
from archwright.parts.attention.softmax import SoftmaxAttention as SoftmaxAttention
from archwright.parts.registry import Registry
from archwright.spec import attention as spec

ATTENTIONS = Registry(
    spec.Attention,
    "(spec, dim)",
    nn.Module,
    {
        spec.SoftmaxAttention: SoftmaxAttention,
        spec.LatentAttention: LatentAttention,
    },
)
"""Modules. Those of this package take norms, positions and a layer's number besides, and are called with (x, view,
rotation, memory, projected). One from outside is called with x and what its spec `takes`; it has a method
`flops_per_token(length)`."""
