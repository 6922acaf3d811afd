"""ProphetNet's scores of buckets of distances."""

from jaxtyping import Float
from torch import Tensor, nn

from archwright.classic.spec import distance_scores as spec
from archwright.parts.kernels.scores import Bias
from archwright.parts.linear import Linear, set_blocks
from archwright.parts.masks import AttentionMask
from archwright.parts.positions.relative import t5_buckets
from archwright.parts.tensor_parallel import TensorParallel


class BucketScores(nn.Module):
    """score(q, k) + s[bucket(k - q)], with s = W x_q + b, one number per head and bucket.

    Shapes: x [batch, length, dim], W [num_heads * num_buckets, dim]. Buckets as in T5.

    Qi et al., 2020, ProphetNet, published code.
    """

    def __init__(self, spec: spec.BucketScores, dim: int, num_heads: int, *, two_way: bool) -> None:
        super().__init__()
        self.spec, self.num_heads, self.two_way = spec, num_heads, two_way
        self.map = Linear(dim, num_heads * spec.num_buckets, bias=True, deepnorm=False)
        set_blocks(num_heads, self.map)

    def forward(self, x: Float[Tensor, "batch length dim"], view: AttentionMask) -> Bias:
        # [batch, length, heads, buckets]
        scores = self.map(x).unflatten(-1, (self.num_heads, -1))
        at, keys = view.layout.position_ids_or_range(), view.keys_at.position_ids_or_range()
        return _OfBuckets(self, scores, at, keys)

    @property
    def tensor_parallel(self) -> TensorParallel:
        """Ranks split the heads."""
        return TensorParallel({"num_heads": self.num_heads})

    def buckets(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance k - q."""
        return t5_buckets(
            distance, self.spec.num_buckets, self.spec.max_distance, two_way=self.two_way
        )


class _OfBuckets:
    """s[bucket(k - q)] for pairs of positions; s [batch, length, heads, buckets]."""

    def __init__(self, part: BucketScores, scores: Tensor, queries: Tensor, keys: Tensor) -> None:
        self.part, self.scores, self.queries, self.keys = part, scores, queries, keys

    def block(self, first: int, stop: int, key_first: int, key_stop: int) -> Tensor:
        # k - q [rows, 1, queries, keys]
        between = (
            self.keys[:, None, None, key_first:key_stop] - self.queries[:, None, first:stop, None]
        )
        # [batch, heads, queries, buckets]
        scores = self.scores[:, first:stop].transpose(1, 2)
        buckets = self.part.buckets(between)
        return scores.gather(-1, buckets.expand(*scores.shape[:3], -1))
