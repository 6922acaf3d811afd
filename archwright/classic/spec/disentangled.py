"""DeBERTa's attention between contents and distances."""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from archwright.classic.spec.equal_heads import EqualHeads
from archwright.spec.attention import AttentionBias
from archwright.spec.choice import AutoTokens, Count, ModelSizes, OptionalFloat, Probability
from archwright.spec.masks import Full, Mask
from archwright.spec.mixers import ALL_INPUTS
from archwright.spec.norms import NoNorm, Norm
from archwright.spec.scores import ScoreScale, SqrtScale


class DisentangledAttention(EqualHeads):
    """Attention with scores from content and distances: scale (q_i k_j + q_i R_d + k_j S_d) / sqrt(3) (He et al., 2020,
    DeBERTa, section 3.1). R and S are projections of a table of distances d, shared by all layers."""

    kind: Literal["disentangled"] = "disentangled"
    knows_distances: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = ALL_INPUTS - {"position"}
    bias: AttentionBias = Field(AttentionBias(), examples=[True])
    """Biases of the four projections; R has a bias if `key` does, S if `query` does."""
    terms: Literal["both", "content_to_position", "position_to_content"] = "both"
    """Distance terms. content_to_position: q_i R_d; position_to_content: k_j S_d; both: their sum. Scores are divided
    by the square root of the number of terms, including q_i k_j."""
    max_distance: AutoTokens = Field("auto", examples=[256])
    """Largest distinct distance, in tokens; auto: context_length."""
    num_buckets: Count | Literal["none"] = Field("none", examples=[256])
    """Table rows per direction; "none": one per distance. With fewer rows, up to half of them are for single short
    distances, and long distances share the rest on a log scale (He et al., 2021, DeBERTa V3; DeBERTa V2's code)."""
    distance_maps: Literal["own", "content"] = "own"
    """Projections of distances. own: separate ones; content: those for queries and keys (DeBERTa V2 and V3)."""
    distance_norm: Norm = Field(NoNorm(), examples=[{"kind": "layer"}])
    """Norm of the table's rows (DeBERTa V2 and V3)."""
    distance_dropout: Probability = 0.0
    """Share of the table's values dropped in training, drawn separately in each layer."""
    scale: ScoreScale = SqrtScale()
    """Factor of all terms, in addition to the division by the square root of their number."""
    softcap: OptionalFloat = Field("none", examples=[50.0])
    """c tanh(s / c) over the scaled content term, before distance terms and the mask."""
    mask: Mask = Field(Full(), examples=[{"kind": "causal"}])
    """Keys that a query may attend to."""

    @property
    def num_terms(self) -> int:
        """Number of distance terms."""
        return 2 if self.terms == "both" else 1

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        found = super().numbers(sizes)
        far = {"max_distance": sizes.context_length} if self.max_distance == "auto" else {}
        return {**found, **far}

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        number = self.num_buckets
        far = sizes.context_length if self.max_distance == "auto" else self.max_distance
        if number != "none" and (number < 4 or far - 1 <= number // 2):
            yield (
                f"num_buckets: found {number} with max_distance = {far}; expected 4 or more, and at most "
                f"{max(4, 2 * (far - 2))}, or num_buckets=none"
            )

    @property
    def side(self) -> int:
        """Rows of the table for distances of one sign, of resolved values."""
        return int(self.max_distance if self.num_buckets == "none" else self.num_buckets)

    @property
    def one_line(self) -> str:
        return f"disentangled {super().one_line}"

    def num_parameters(self, dim: int) -> int:
        width = int(self.num_heads) * int(self.head_dim)
        maps, biases = 4, self.bias.query + self.bias.key + self.bias.value
        if self.distance_maps == "own":
            maps += self.num_terms
            biases += self.bias.key * (self.terms != "position_to_content")
            biases += self.bias.query * (self.terms != "content_to_position")
        return maps * dim * width + biases * width + self.bias.out * dim

    def num_shared_parameters(self, dim: int) -> Mapping[Hashable, int]:
        key = (self.side, self.distance_norm)
        return {key: 2 * self.side * dim + self.distance_norm.num_parameters(dim)}
