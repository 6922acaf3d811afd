"""Attention with equal heads."""

from typing import Generic, TypeVar

from archwright.classic.spec import disentangled, longformer, transient_global
from archwright.parts.kernels import ScoreMods
from archwright.parts.kernels.scores import Bias
from archwright.parts.linear import Linear, set_blocks
from archwright.parts.mixers.attention import AttentionMixer
from archwright.parts.mixers.scales import SCORE_SCALES
from archwright.parts.sharing import LayerInfo

S = TypeVar(
    "S",
    longformer.LongformerAttention,
    transient_global.TransientGlobalAttention,
    disentangled.DisentangledAttention,
)


class EqualHeads(AttentionMixer, Generic[S]):
    """Attention with equal numbers and widths of query, key and value heads, without the output map."""

    def __init__(self, spec: S, dim: int, layer: LayerInfo | None) -> None:
        layer, sizes = layer or LayerInfo(), spec.heads(dim)
        num_heads, head_dim = sizes["num_heads"], sizes["head_dim"]
        super().__init__(spec.mask, dim, layer, num_heads, key_dim=head_dim)
        self.spec: S = spec.model_copy(update=sizes)
        self.head_dim = head_dim
        self.scale: float = SCORE_SCALES.make(spec.scale, head_dim, layer.number)
        width = num_heads * head_dim
        self.query = Linear(dim, width, bias=spec.bias.query, deepnorm=False)
        self.key = Linear(dim, width, bias=spec.bias.key, deepnorm=False)
        self.value = Linear(dim, width, bias=spec.bias.value)
        set_blocks(num_heads, self.query, self.key, self.value)

    @property
    def inputs(self) -> list[Linear]:
        return [self.query, self.key, self.value]

    def score_mods(self, bias: Bias | None) -> ScoreMods:
        """Return the transformations of scores, including a bias."""
        softcap = None if self.spec.softcap == "none" else self.spec.softcap
        return ScoreMods(self.scale, self.spec.dropout if self.training else 0.0, softcap, bias)
