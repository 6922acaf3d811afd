"""Reformer's attention by locality-sensitive hashing."""

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from archwright.classic.spec.equal_heads import EqualHeads
from archwright.spec.choice import Count, ModelSizes, ScaleDown, Tokens
from archwright.spec.masks import Causal, Mask
from archwright.spec.mixers import ALL_INPUTS
from archwright.spec.scores import ScoreScale, SqrtScale

Buckets = Annotated[int, Field(ge=2, le=2**16, multiple_of=2)]
"""Number of buckets of a hash: even, as each direction and its opposite have one."""


class LSHAttention(EqualHeads):
    """Softmax attention among tokens of one hash bucket (Kitaev et al., 2020, Reformer, section 2).

    Queries also serve as keys. They are hashed by random rotations, sorted by bucket and cut into chunks. A query
    attends, under its mask, to the keys of its own and neighbouring chunks, but to itself only if it sees no other key.
    The chunk of a token depends on all tokens of its text, even under a causal mask.
    """

    kind: Literal["lsh"] = "lsh"
    spelling: ClassVar[str] = "LSH"
    takes: ClassVar[frozenset[str]] = ALL_INPUTS - {"position", "attention_mask"}
    chooses_keys: ClassVar[bool] = True
    scale: ScoreScale = SqrtScale()
    """Factor of q k^T, with k = q / rms(q)."""
    num_hashes: Count = Field(1, examples=[4])
    """Rounds of hashing with different rotations; their results are weighted by their softmax denominators."""
    num_buckets: Literal["auto"] | Buckets | Annotated[tuple[Buckets, ...], Field(strict=False)] = (
        Field("auto", examples=[32])
    )
    """Buckets of a round, or a list of factors, one per hash; auto: the largest power of 2 up to 2 context_length /
    chunk_size, as two factors if it is large."""
    chunk_size: Tokens = Field(64, examples=[32])
    """Length of a chunk of sorted tokens. Shorter texts are attended to in full."""
    chunks_before: int = Field(1, ge=0, le=2**6)
    """Sorted chunks before its own that a query attends to; the last chunk precedes the first."""
    chunks_after: int = Field(0, ge=0, le=2**6)
    """Sorted chunks after its own that a query attends to."""
    hash_seed: int = Field(0, ge=0, le=2**32)
    """Seed of the rotations, the same in every layer and pass."""
    mask: Mask = Field(Causal(), examples=[{"kind": "full"}])
    """Keys that a query may attend to, at most."""

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        return {**super().numbers(sizes), "num_buckets": self._buckets(sizes.context_length)}

    def _buckets(self, context_length: int) -> int | tuple[int, ...]:
        """Return the numbers of buckets; auto follows the published code."""
        if self.num_buckets != "auto":
            return self.num_buckets
        chunks = context_length // self.chunk_size
        power = max(1, (2 * chunks).bit_length() - 1)
        if 2**power <= 2 * max(math.isqrt(chunks), self.chunk_size):
            return int(2**power)
        return 2 ** (power // 2), 2 ** (power - power // 2)

    @property
    def one_line(self) -> str:
        rounds = (
            f"{self.num_hashes} hash{'es' * (self.num_hashes > 1)}, chunks of {self.chunk_size}"
        )
        heads = f"{self.num_heads} heads of {self.head_dim}"
        return f"{self.mask.kind} attention by LSH ({rounds}) in {heads}"

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        """Keep the chunks' share of the text; buckets follow."""
        chunk = max(8, round(self.chunk_size * to.context_share))
        changes = {"chunk_size": chunk, "num_buckets": "auto"} if to.context_share < 1 else {}
        return super().scaled_down(to) | changes

    def num_parameters(self, dim: int) -> int:
        return 3 * dim * int(self.num_heads) * int(self.head_dim)
