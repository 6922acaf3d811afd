"""Transformer-XL's relative positions."""

import torch
from torch import Tensor, nn

from archwright.classic.spec import transformer_xl as spec
from archwright.parts.kernels.scores import Bias
from archwright.parts.linear import Linear, set_blocks
from archwright.parts.masks import AttentionMask
from archwright.parts.positions import distances
from archwright.parts.positions.absolute import sines
from archwright.parts.positions.relative import Queries, ScorePosition
from archwright.parts.tensor_parallel import TensorParallel


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
