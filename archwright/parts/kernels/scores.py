"""Changes of scores other than the mask: scale, soft-cap, bias, sinks and dropout."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor


@runtime_checkable
class Bias(Protocol):
    """Terms that are added to scores, computed in blocks.

    A bias that multiplies matrices has their FLOPs, of all blocks together, in an attribute `flops`.
    """

    def block(
        self, first: int, stop: int, key_first: int, key_stop: int
    ) -> Float[Tensor, "rows heads queries keys"]:
        """Return the bias between queries [first, stop) and keys [key_first, key_stop)."""


class ElementwiseBias:
    """Bias that depends only on the head and two positions: `value(head, query, key)`.

    Shapes broadcast. Fused kernels call the same function for single scores.

    Args:
        by_distance: True if `value` depends on the positions only by key - query.
    """

    def __init__(
        self,
        value: Callable[[Tensor, Tensor, Tensor], Tensor],
        num_heads: int,
        queries: Int[Tensor, "*rows queries"],
        keys: Int[Tensor, "*others keys"],
        *,
        by_distance: bool = False,
    ) -> None:
        self.value, self.queries, self.keys = value, queries, keys
        self.by_distance = by_distance
        self.heads = torch.arange(num_heads, device=queries.device)[:, None, None]

    def block(
        self, first: int, stop: int, key_first: int, key_stop: int
    ) -> Float[Tensor, "rows heads queries keys"]:
        queries = self.queries[:, None, first:stop, None]
        return self.value(self.heads, queries, self.keys[:, None, None, key_first:key_stop])

    def at_distances(self, least: int, most: int) -> Float[Tensor, "heads distances"]:
        """Return the bias at distances key - query from `least` to `most` - 1."""
        distances = torch.arange(least, most, device=self.heads.device)
        return self.value(self.heads[:, 0], torch.zeros_like(distances), distances)


@dataclass(frozen=True)
class RepeatedKeys:
    """Bias log(n) for keys that count n times, plus another bias.

    Args:
        log_times: returns log(n) of a block, [rows, 1, queries, keys].
    """

    log_times: Callable[[int, int, int, int], Tensor]
    beside: Bias | None = None

    def block(
        self, first: int, stop: int, key_first: int, key_stop: int
    ) -> Float[Tensor, "rows heads queries keys"]:
        own = self.log_times(first, stop, key_first, key_stop)
        if self.beside is None:
            return own
        return own + self.beside.block(first, stop, key_first, key_stop)


@dataclass(frozen=True)
class ScoreMods:
    """weights = softmax(cap(scale q k^T) + bias) over the visible keys and the sink.

    cap(s) = softcap tanh(s / softcap). A sink is a key without a value and with a learned score.
    """

    scale: float
    dropout: float = 0.0
    softcap: float | None = None
    bias: Bias | None = None
    sinks: Float[Tensor, " heads"] | None = None
    """One logit per head, counted only in the denominator."""

    @property
    def plain(self) -> bool:
        """True if only the scale and the mask change scores."""
        return self.softcap is None and self.bias is None and self.sinks is None

    def scores(
        self, products: Tensor, hidden: Tensor | None, bias: Tensor | None
    ) -> Float[Tensor, "batch heads queries keys"]:
        """Return cap(scale q k^T) + bias, and -inf for hidden keys, in float32 or float64."""
        scores = products.to(torch.promote_types(products.dtype, torch.float32)) * self.scale
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if bias is not None:
            scores = scores + bias
        return scores if hidden is None else scores.masked_fill(hidden, -torch.inf)

    def weights(
        self, products: Tensor, hidden: Tensor | None, bias: Tensor | None
    ) -> Float[Tensor, "batch heads queries keys"]:
        """Return the weights of products q k^T, in float32 or float64."""
        scores = self.scores(products, hidden, bias)
        if self.sinks is None:
            return scores.softmax(-1)
        sinks = self.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
