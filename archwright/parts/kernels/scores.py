"""How scores become weights, besides the mask."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor


@runtime_checkable
class Bias(Protocol):
    """Terms that a position encoding adds to scores, block by block.

    One that multiplies matrices has their FLOPs in an attribute `flops`, for all blocks together.
    """

    def block(
        self, first: int, stop: int, key_first: int, key_stop: int
    ) -> Float[Tensor, "rows heads queries keys"]:
        """Return what is added between queries [first, stop) and keys [key_first, key_stop)."""


class ElementwiseBias:
    """A bias that depends on the head and on two positions alone: `value(head, query, key)`.

    Shapes broadcast; a block and one number of a fused kernel come from the same function.

    Args:
        by_distance: whether `value` depends on the positions through key - query alone.
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
        """Return the bias at the distances key - query of least .. most - 1."""
        distances = torch.arange(least, most, device=self.heads.device)
        return self.value(self.heads[:, 0], torch.zeros_like(distances), distances)


@dataclass(frozen=True)
class RepeatedKeys:
    """A bias for keys that count several times, the logarithm of how many, beside another.

    Args:
        log_times: returns it of a block, [rows, 1, queries, keys].
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

    cap(s) = softcap tanh(s / softcap); a sink is a key without a value, whose score is given.
    """

    scale: float
    dropout: float = 0.0
    softcap: float | None = None
    bias: Bias | None = None
    sinks: Float[Tensor, " heads"] | None = None
    """One logit for each head, counted in the denominator alone."""

    @property
    def plain(self) -> bool:
        """Whether only the scale and the mask act."""
        return self.softcap is None and self.bias is None and self.sinks is None

    def scores(
        self, products: Tensor, hidden: Tensor | None, bias: Tensor | None
    ) -> Float[Tensor, "batch heads queries keys"]:
        """Return cap(scale q k^T) + bias, and -inf where hidden, in float32 or wider."""
        scores = products.to(torch.promote_types(products.dtype, torch.float32)) * self.scale
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if bias is not None:
            scores = scores + bias
        return scores if hidden is None else scores.masked_fill(hidden, -torch.inf)

    def weights(
        self, products: Tensor, hidden: Tensor | None, bias: Tensor | None
    ) -> Float[Tensor, "batch heads queries keys"]:
        """Return the weights of products q k^T, in float32 or wider."""
        scores = self.scores(products, hidden, bias)
        if self.sinks is None:
            return scores.softmax(-1)
        sinks = self.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
