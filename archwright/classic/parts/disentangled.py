"""DeBERTa's disentangled attention between contents and distances."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from archwright.classic.parts.equal_heads import EqualHeads
from archwright.classic.spec import disentangled as spec
from archwright.parts.context import Context
from archwright.parts.linear import Embedding, Linear, project, set_blocks
from archwright.parts.masks import AttentionMask
from archwright.parts.mixers.attention import Heads
from archwright.parts.norms import NORMS
from archwright.parts.positions import distances
from archwright.parts.sharing import LayerInfo
from archwright.parts.states import KVCache
from archwright.spec.norms import Norm


class DistanceTable(Embedding):
    """norm(W), W [2 side, dim]: a row per distance or bucket -side .. side - 1. He et al., 2020, section 3.1."""

    def __init__(self, rows: int, dim: int, norm: Norm) -> None:
        super().__init__(rows, dim)
        self.norm: nn.Module = NORMS.make(norm, dim)

    def forward(self, index: Tensor) -> Tensor:
        rows: Tensor = self.norm(F.embedding(index, self.weight))
        return rows


class DisentangledAttention(EqualHeads[spec.DisentangledAttention]):
    """out(concat_h(softmax(s (q_i k_j + q_i R_d + k_j S_d)) v_j)), d = row(i - j), s = scale / sqrt(number of terms).

    R and S are maps of a table of distances that all layers share: `distance_key` and `distance_query`, or `key` and
    `query`. row(i - j) is the distance or its bucket, clamped to -side .. side - 1. As in the published code, both
    terms use the distance from key to query; in section 3.1, S uses the opposite distance. Shapes: x and the result
    [batch, length, dim]; q, k and v [batch, length, num_heads, head_dim]; R and S [rows, num_heads, head_dim].

    He et al., 2020, DeBERTa, section 3.1, equation 4; buckets: the published code of version 2.

    Args:
        spec: open sizes follow from `dim`; max_distance is a number.
        layer: place in the model.
    """

    def __init__(
        self, spec: spec.DisentangledAttention, dim: int, layer: LayerInfo | None = None
    ) -> None:
        layer = layer or LayerInfo()
        super().__init__(spec, dim, layer)
        self.dim, self.scale = dim, self.scale * (1 + spec.num_terms) ** -0.5
        width, bias = self.query.d_out, spec.bias
        self.out = Linear(width, dim, bias=bias.out, is_residual_output=True)
        self.content_to_position = spec.terms != "position_to_content"
        self.position_to_content = spec.terms != "content_to_position"
        separate = spec.distance_maps == "own"
        self.distance_key, self.distance_query = (
            Linear(dim, width, bias=has_bias, deepnorm=False) if separate and used else None
            for has_bias, used in (
                (bias.key, self.content_to_position),
                (bias.query, self.position_to_content),
            )
        )
        set_blocks(self.num_heads, self.out, self.distance_key, self.distance_query)
        rows, norm = 2 * spec.side, spec.distance_norm
        new_table = lambda: DistanceTable(rows, dim, norm)  # noqa: E731
        self.distances = layer.shared("distances", (rows, dim, norm), new_table)

    @property
    def along_text(self) -> str:
        return ""

    @property
    def kept_per_token(self) -> int:
        return self.key.d_out + self.value.d_out

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        context: Context | None = None,
        state: KVCache | None = None,
        projected: Sequence[Tensor] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return the mixer's output; without a context, each sequence is a text from position 0."""
        if context is None:
            context = Context.alone(x)
        mask = context.mask(self.pattern, self.num_heads)
        if projected is None:
            projected = project(x, self.inputs)
        # [batch, length, heads, head_dim]
        q, k, v = (p.unflatten(-1, (self.num_heads, self.head_dim)) for p in projected)
        k, v = context.all_keys(state, k, v)
        # [batch, length, heads, head_dim]
        mixed = self.kernel.run(q, k, v, mask, self.score_mods(self._terms(q, k, mask)))
        out: Tensor = self.out(mixed.flatten(-2))  # [batch, length, dim]
        return out

    def rows(self, distance: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Return the table row of each distance, query position minus key position."""
        side = self.spec.side
        if self.spec.num_buckets != "none":
            distance = log_buckets(distance, self.spec.num_buckets, int(self.spec.max_distance))
        return (distance + side).clamp(0, 2 * side - 1)

    def _terms(self, q: Heads, k: Heads, mask: AttentionMask) -> "_DistanceTerms":
        """Return the distance terms of scores, from the rows of the table in use."""
        first, last = self.rows(torch.tensor(distances(mask))).tolist()
        table = self.distances.value(torch.arange(first, last + 1, device=q.device))
        table = F.dropout(table, self.spec.distance_dropout, self.training).to(q.dtype)
        keys = queries = None
        if self.content_to_position:
            # R [rows, heads, head_dim]
            keys = (self.distance_key or self.key)(table).unflatten(-1, (-1, self.head_dim))
        if self.position_to_content:
            # S [rows, heads, head_dim]
            queries = (self.distance_query or self.query)(table).unflatten(-1, (-1, self.head_dim))
        return _DistanceTerms(self, q * self.scale, k * self.scale, keys, queries, first, mask)

    def extra_repr(self) -> str:
        return f"{self.num_heads} heads of {self.head_dim}, {2 * self.spec.side} distances"


class _DistanceTerms:
    """q R_d + k S_d for each pair: q [b, t, h, d], k [b, s, h, d], R and S [rows, h, d]."""

    def __init__(
        self,
        mixer: DisentangledAttention,
        query: Tensor,
        key: Tensor,
        keys: Tensor | None,
        queries: Tensor | None,
        first: int,
        view: AttentionMask,
    ) -> None:
        self.rows_of, self.first_row = mixer.rows, first
        self.query, self.key, self.of_keys, self.of_queries = query, key, keys, queries
        self.flops = sum(
            2.0 * x.numel() * len(rows)
            for x, rows in ((query, keys), (key, queries))
            if rows is not None
        )
        self.at = view.layout.position_ids_or_range()
        self.keys_at = view.keys_at.position_ids_or_range()

    def block(self, first: int, stop: int, key_first: int, key_stop: int) -> Tensor:
        distance = self.at[:, first:stop, None] - self.keys_at[:, None, key_first:key_stop]
        rows = (self.rows_of(distance) - self.first_row)[:, None]  # [rows or 1, 1, queries, keys]
        terms: list[Tensor] = []
        if self.of_keys is not None:
            terms.append(_looked_up(self.query[:, first:stop], self.of_keys, rows))
        if self.of_queries is not None:
            terms.append(_looked_up(self.key[:, key_first:key_stop], self.of_queries, rows.mT).mT)
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]


def _looked_up(x: Tensor, table: Tensor, rows: Tensor) -> Tensor:
    """Return products of x with the table row of each pair: [batch, heads, tokens of x, other tokens]."""
    # [batch, heads, tokens of x, rows of the table]
    products = torch.einsum("bqhd,nhd->bhqn", x, table)
    return products.gather(-1, rows.expand(*products.shape[:3], -1))


def log_buckets(distance: Int[Tensor, "*shape"], number: int, farthest: int) -> Tensor:
    """Return the bucket of each distance d: d if |d| <= m = number // 2, else with the sign of d
    ceil(ln(|d| / m) / ln((farthest - 1) / m) (m - 1)) + m. He et al.'s published code of version 2."""
    middle = number // 2
    far = distance.abs().clamp(min=middle)
    share = torch.log(far / middle) / math.log((farthest - 1) / middle)
    bucket = torch.ceil(share * (middle - 1)).long() + middle
    return torch.where(distance.abs() <= middle, distance, bucket * distance.sign())
