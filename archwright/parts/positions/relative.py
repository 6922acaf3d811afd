"""Positions added to scores: modules from (queries, mask, scale) to queries and a bias (see `kernels/scores.py`)."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.kernels.scores import Bias, ElementwiseBias
from archwright.parts.linear import Embedding, Linear, set_blocks
from archwright.parts.masks import AttentionMask
from archwright.parts.positions.absolute import sines
from archwright.parts.tensor_parallel import TensorParallel
from archwright.spec import positions as spec

Queries = Float[Tensor, "batch length heads head_dim"]


class ScorePosition(nn.Module):
    """Positions that are added to scores; one from outside need not be one of these."""

    @property
    def tensor_parallel(self) -> TensorParallel | None:
        """Ranks split the heads; None: replicated."""
        return None


class ALiBi(ScorePosition):
    """score + slope_h (k - q), with the slopes of `alibi_slopes`. Press et al., 2021, section 3."""

    def __init__(
        self, spec: spec.ALiBi, dim: int, num_heads: int, head_dim: int, *, two_way: bool
    ) -> None:
        super().__init__()
        self.spec, self.num_heads = spec, num_heads
        self.slopes: Tensor
        self.register_buffer("slopes", alibi_slopes(num_heads, spec.bias_max), persistent=False)

    def forward(self, query: Queries, view: AttentionMask, scale: float) -> tuple[Queries, Bias]:
        slopes = self.slopes * scale if self.spec.scaled else self.slopes

        def value(head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            distance = k - q if view.pattern.lookahead == 0 else -(k - q).abs()
            return slopes[head] * distance

        return query, _elementwise(value, self.num_heads, view)

    @property
    def tensor_parallel(self) -> TensorParallel:
        return TensorParallel({"num_heads": self.num_heads}, {"slopes": 0})

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.slopes.copy_(alibi_slopes(self.num_heads, self.spec.bias_max))


def alibi_slopes(num_heads: int, bias_max: int = 8) -> Float[Tensor, " heads"]:
    """Return 2^(-m k/n), k = 1 .. n, with m = bias_max and the largest power of two n <= num_heads, then every second
    slope of 2n heads (Press et al., 2021, and their published code)."""
    n = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-bias_max * k / n) for k in range(1, n + 1)]
    slopes += [2 ** (-bias_max * k / (2 * n)) for k in range(1, 2 * (num_heads - n), 2)]
    return torch.tensor(slopes)


class T5Bias(ScorePosition):
    """score + table[bucket(k - q), head], with a table of shape [num_buckets, num_heads].

    Buckets as in `t5_buckets`. Raffel et al., 2019, section 2.1.
    """

    def __init__(
        self, spec: spec.T5Bias, dim: int, num_heads: int, head_dim: int, *, two_way: bool
    ) -> None:
        super().__init__()
        self.spec, self.num_heads, self.two_way = spec, num_heads, two_way
        self.table = Embedding(spec.num_buckets, num_heads)

    def forward(self, query: Queries, view: AttentionMask, scale: float) -> tuple[Queries, Bias]:
        table = self.table.weight

        def value(head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return table[self.buckets(k - q), head]

        return query, _elementwise(value, self.num_heads, view)

    @property
    def tensor_parallel(self) -> TensorParallel:
        return TensorParallel({"num_heads": self.num_heads}, {"table.weight": 1})

    def buckets(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance k - q."""
        return t5_buckets(
            distance, self.spec.num_buckets, self.spec.max_distance, two_way=self.two_way
        )


def t5_buckets(distance: Tensor, number: int, farthest: int, *, two_way: bool) -> Tensor:
    """Return the bucket of each distance k - q, among `number` buckets.

    Half of the buckets contain one short distance each. The rest are on a log scale; the last one includes all
    distances of `farthest` or more. With `two_way`, keys after the query have half of all buckets.
    """
    number = number // (2 if two_way else 1)
    ahead = (distance > 0).long() * number if two_way else 0
    behind = distance.abs() if two_way else (-distance).clamp(min=0)
    exact = number // 2
    # Position on the log scale between `exact` (0) and `farthest` (1).
    share = torch.log(behind.clamp(min=1).float() / exact)
    share = share / math.log(farthest / exact)
    far = (exact + (share * (number - exact)).long()).clamp(max=number - 1)
    return torch.where(behind < exact, behind, far) + ahead


class TransformerXL(ScorePosition):
    """score = scale (q k + u k + q r + v r), with r = W sines(q's position - k's), u and v learned.

    Shapes: W [num_heads * head_dim, dim]; u and v [num_heads * head_dim]. Parameters of each layer.
    Dai et al., 2019, section 3.3.
    """

    def __init__(
        self, spec: spec.TransformerXL, dim: int, num_heads: int, head_dim: int, *, two_way: bool
    ) -> None:
        super().__init__()
        self.theta, self.dim = spec.theta, dim
        self.num_heads, self.head_dim = num_heads, head_dim
        self.distance = Linear(dim, num_heads * head_dim)
        set_blocks(num_heads, self.distance)
        self.content_bias = nn.Parameter(torch.zeros(num_heads * head_dim))
        self.distance_bias = nn.Parameter(torch.zeros(num_heads * head_dim))

    def forward(self, query: Queries, view: AttentionMask, scale: float) -> tuple[Queries, Bias]:
        at, keys = view.layout.position_ids_or_range(), view.keys_at.position_ids_or_range()
        least, most = distances(view)
        between = torch.arange(least, most + 1, device=query.device)
        vectors = sines(between, self.dim, self.theta, interleaved=False)
        heads = (self.num_heads, self.head_dim)
        # [distances, heads, head_dim]
        r = self.distance(vectors.to(self.distance.weight.dtype)).unflatten(-1, heads)
        # [heads, head_dim]
        u, v = (b.view(heads).to(query.dtype) for b in (self.content_bias, self.distance_bias))
        return query + u, _DistanceBias((query + v) * scale, r.to(query.dtype), at - least, keys)

    @property
    def tensor_parallel(self) -> TensorParallel:
        per_head = {"content_bias": 0, "distance_bias": 0}
        return TensorParallel({"num_heads": self.num_heads}, per_head)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.content_bias)
        nn.init.zeros_(self.distance_bias)


def distances(view: AttentionMask) -> tuple[int, int]:
    """Return the least and the largest distance, query position minus key position."""
    at, keys = view.layout, view.keys_at
    # Consecutive positions need no synchronization with the device.
    if at.position_ids is None and keys.position_ids is None:
        return at.start - keys.start - keys.length + 1, at.start - keys.start + at.length - 1
    queries, others = at.position_ids_or_range(), keys.position_ids_or_range()
    return int(queries.min() - others.max()), int(queries.max() - others.min())


class _DistanceBias:
    """q r for every distance, gathered for each pair. Shapes: q [b, t, h, d], r [distances, h, d]."""

    def __init__(self, query: Tensor, r: Tensor, queries: Tensor, keys: Tensor) -> None:
        self.query, self.r, self.queries, self.keys = query, r, queries, keys
        self.flops = 2.0 * query.numel() * len(r)

    def block(self, first: int, stop: int, key_first: int, key_stop: int) -> Tensor:
        # [batch, heads, queries, distances]
        products = torch.einsum("bqhd,nhd->bhqn", self.query[:, first:stop], self.r)
        keys = self.keys[:, None, key_first:key_stop]
        rows = (self.queries[:, first:stop, None] - keys)[:, None]
        return products.gather(-1, rows.expand(*products.shape[:3], -1))


def _elementwise(
    value: Callable[[Tensor, Tensor, Tensor], Tensor], num_heads: int, view: AttentionMask
) -> ElementwiseBias:
    queries, keys = view.layout.position_ids_or_range(), view.keys_at.position_ids_or_range()
    return ElementwiseBias(value, num_heads, queries, keys, by_distance=True)
