"""Attention branches: how tokens exchange information."""

from typing import Protocol, runtime_checkable

from torch import nn

from archwright.parts.attention.latent import LatentAttention as LatentAttention
from archwright.parts.attention.scales import QUERY_TEMPERATURES as QUERY_TEMPERATURES
from archwright.parts.attention.scales import SCORE_SCALES as SCORE_SCALES
from archwright.parts.attention.softmax import KVCache as KVCache
from archwright.parts.attention.softmax import SoftmaxAttention as SoftmaxAttention
from archwright.parts.registry import Registry
from archwright.spec import attention as spec


@runtime_checkable
class OutsideAttention(Protocol):
    """An attention from outside the package: a module that is called with x, and by name with what its spec `takes`."""

    def flops_per_token(self, length: int) -> float:
        """Return the FLOPs of a forward pass per token of a text of `length` tokens, beside those of `Linear` maps."""


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
rotation, memory, projected); those from outside as `OutsideAttention` describes them."""
