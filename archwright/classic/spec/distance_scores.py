"""ProphetNet's scores of buckets of distances."""

from typing import Literal

from pydantic import Field

from archwright.spec.attention import DistanceScores


class BucketScores(DistanceScores):
    """A score per bucket of distances and head, W x + b (Qi et al., 2020, ProphetNet, published code)."""

    kind: Literal["buckets"] = "buckets"
    num_buckets: int = Field(32, ge=4, le=2**12)
    """Buckets per head; short distances have one each, long distances share buckets on a log scale."""
    max_distance: int = Field(128, ge=2, le=2**30)
    """Distances from this one on share the last bucket."""

    def num_parameters(self, dim: int, num_heads: int) -> int:
        return (dim + 1) * self.num_buckets * num_heads
