"""Multi-head latent attention: keys and values of all heads from one narrow vector."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.context import Context
from archwright.parts.kernels import ScoreMods
from archwright.parts.kernels.costs import visible_pairs
from archwright.parts.leaves import LeafCosts, leaf
from archwright.parts.linear import Linear, project, set_blocks
from archwright.parts.masks import AttentionMask
from archwright.parts.mixers.attention import AttentionMixer, Heads
from archwright.parts.mixers.scales import SCORE_SCALES
from archwright.parts.norms import NORMS
from archwright.parts.sharing import LayerInfo
from archwright.parts.states import KVCache
from archwright.parts.tensor_parallel import TensorParallel
from archwright.spec import latent as specs


def _latent_costs(
    q: Heads, kept: Heads, rank: int, mask: AttentionMask, scores: ScoreMods
) -> LeafCosts:
    """Return the costs of scores with vectors that all heads share, and of mixtures of their latents."""
    batch, length, heads, width = q.shape
    out = torch.empty(batch, length, heads, rank, dtype=kept.dtype, device="meta")
    flops = 2.0 * batch * heads * (width + rank) * visible_pairs(mask)
    return LeafCosts(flops, float(q.nbytes + kept.nbytes + out.nbytes), out)


@leaf(_latent_costs)
def _mixed_latents(
    q: Heads, kept: Heads, rank: int, mask: AttentionMask, scores: ScoreMods
) -> Heads:
    """Return what queries take of latents: [batch, length, heads, rank]."""
    # [batch, heads, length, keys]
    products = torch.einsum("bthr,bsr->bhts", q, kept[:, :, 0])
    bias = None
    if scores.bias is not None:
        bias = scores.bias.block(0, q.shape[1], 0, kept.shape[1])
    hidden = None if mask.is_full else ~mask.dense
    weights = F.dropout(scores.weights(products, hidden, bias).to(kept.dtype), scores.dropout)
    # [batch, length, heads, rank]
    return torch.einsum("bhts,bsr->bthr", weights, kept[:, :, 0, :rank])


class LatentAttention(AttentionMixer):
    """out(concat_h(softmax(scale (q_h k_h^T + rot(q'_h) rot(k')^T)) v_h)), with k_h = K_h c and v_h = V_h c.

    A gate multiplies the heads' results by sigmoid(gate(x)).

    c = norm(latent(x)) and k' = rope_key(x) have one head; [q_h, q'_h] is a map of x, or of a separate latent.

    A cache stores c and k'. For a few new tokens and many cached ones, k_h and v_h are not computed: q_h k_h^T =
    (q_h K_h) c^T, and V_h maps the weighted sums of c.

    Shapes: x and the result [batch, length, dim]; q_h and k_h [..., nope_head_dim]; q'_h and k'
    [..., rope_head_dim]; v_h [..., value_head_dim]; c [..., kv_rank].
    DeepSeek-AI, 2024, DeepSeek-V2, section 2.1 and appendix C.

    Args:
        spec: open sizes follow from `dim`.
        layer: place in the model; without it, the mixer has no positions.
    """

    def __init__(
        self, spec: specs.LatentAttention, dim: int, layer: LayerInfo | None = None
    ) -> None:
        layer, sizes = layer or LayerInfo(), spec.heads(dim)
        num_heads, widths = sizes["num_heads"], (sizes["nope_head_dim"], sizes["rope_head_dim"])
        super().__init__(
            spec.mask, dim, layer, num_heads, key_dim=sum(widths), rotary_dim=widths[1]
        )
        self.spec = spec.model_copy(update=sizes)
        self.rank, self.value_dim, self.widths = sizes["kv_rank"], sizes["value_head_dim"], widths
        self.scale: float = SCORE_SCALES.make(spec.scale, sum(self.widths), layer.number)
        width = num_heads * sum(self.widths)
        self.query_norm: nn.Module | None = None
        if spec.query_rank == "none":
            self.query = Linear(dim, width, deepnorm=False)
            set_blocks(num_heads, self.query)
        else:
            bias = spec.bias.query_down
            self.query_down = Linear(dim, spec.query_rank, bias=bias, deepnorm=False)
            self.query_up = Linear(spec.query_rank, width, deepnorm=False)
            self.query_norm = NORMS.make(spec.norm, spec.query_rank)
            set_blocks(1, self.query_down)
            set_blocks(num_heads, self.query_up)
        self.latent = Linear(dim, self.rank, bias=spec.bias.latent, deepnorm=False)
        self.latent_norm: nn.Module = NORMS.make(spec.norm, self.rank)
        self.rope_key = Linear(dim, self.widths[1], bias=spec.bias.rope_key, deepnorm=False)
        self.key_up = Linear(self.rank, num_heads * self.widths[0], deepnorm=False)
        self.value_up = Linear(self.rank, num_heads * self.value_dim)
        self.key_up.reads_weight = self.value_up.reads_weight = True
        self.out = Linear(
            num_heads * self.value_dim, dim, bias=spec.bias.out, is_residual_output=True
        )
        gates = {"none": 0, "head": num_heads, "value": num_heads * self.value_dim}[spec.gate]
        self.gate = Linear(dim, gates) if gates else None
        # All heads read the latent, so every rank computes it.
        set_blocks(1, self.latent, self.rope_key)
        set_blocks(num_heads, self.key_up, self.value_up, self.out, self.gate)
        self.position = self.own_position

    @property
    def inputs(self) -> list[Linear]:
        first = self.query if self.spec.query_rank == "none" else self.query_down
        return [first, self.latent, self.rope_key, *([] if self.gate is None else [self.gate])]

    @property
    def kept_per_token(self) -> int:
        return self.rank + self.widths[1]

    @property
    def kept_blocks(self) -> int:
        return 1

    @property
    def along_text(self) -> str:
        return ""

    @property
    def tensor_parallel(self) -> TensorParallel | None:
        return self.parallel_by_heads({})

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        context: Context | None = None,
        state: KVCache | None = None,
        projected: Sequence[Tensor] | None = None,
        *,
        attention_mask: Tensor | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return the mixer's output; arguments as in `SoftmaxAttention.forward`."""
        if context is None:
            context = Context.alone(x, attention_mask)
        mask = context.mask(self.pattern, self.num_heads)
        if projected is None:
            projected = project(x, self.inputs)
        q = projected[0]
        if self.query_norm is not None:
            q = self.query_up(self.query_norm(q))
        q = q.unflatten(-1, (self.num_heads, -1))  # [batch, length, heads, nope + rope]
        # [c, k'] for all heads: [batch, length, 1, rank + rope]
        kept = torch.cat((self.latent_norm(projected[1]), projected[2]), -1)[:, :, None]
        q, kept = self._rotate_and_cache(q, kept, context, mask, state)
        bias = None
        if self.relative is not None:
            q, bias = self.relative.value(q, mask, self.scale)
        absorbs = mask.kept is not None and self._absorbs(q.shape[1], kept.shape[1])
        mix = self._absorbed if absorbs else self._expanded
        dropout = self.spec.dropout if self.training else 0.0
        softcap = None if self.spec.softcap == "none" else self.spec.softcap
        mixed = mix(q, kept, mask, ScoreMods(self.scale, dropout, softcap, bias))
        if self.gate is not None:
            # One gate for each head or each value: [batch, length, heads, 1 or value_dim].
            mixed = mixed * torch.sigmoid(projected[3]).view(*mixed.shape[:3], -1)
        out: Tensor = self.out(mixed.flatten(-2))  # from [batch, length, heads * value_dim]
        return out

    def _rotate_and_cache(
        self,
        q: Heads,
        kept: Heads,
        context: Context,
        mask: AttentionMask,
        state: KVCache | None,
    ) -> tuple[Heads, Heads]:
        """Rotate the last coordinates of queries and keys, and add cached tokens."""
        if self.caches_unrotated:
            (kept,) = context.all_keys(state, kept)
        if self.rotary is not None:
            rotary, key_rotation = self.rotary.value, self.rotation_of_keys(context, mask)
            q = self._rotated(q, rotary.rotate_query, context.rotation(self.rotary))
            kept = self._rotated(kept, rotary.rotate_key, key_rotation)
        if not self.caches_unrotated:
            (kept,) = context.all_keys(state, kept)
        return q, kept

    def _rotated(self, x: Heads, rotate: Callable[[Tensor, Any], Tensor], rotation: Any) -> Heads:
        passthrough, rotating = x[..., : -self.widths[1]], x[..., -self.widths[1] :]
        return torch.cat((passthrough, rotate(rotating, rotation)), -1)

    def _absorbs(self, queries: int, keys: int) -> bool:
        """True if keys and values of all tokens cost more than attention to wider latents."""
        head_width = self.widths[0] + self.value_dim
        return (keys - queries) * self.rank * head_width > queries * keys * (
            2 * self.rank - head_width
        )

    def _expanded(self, q: Heads, kept: Heads, mask: AttentionMask, scores: ScoreMods) -> Heads:
        # c [batch, keys, rank], k' [batch, keys, 1, rope]
        latent, rope_key = kept[:, :, 0, : self.rank], kept[..., self.rank :]
        k = self.key_up(latent).unflatten(-1, (self.num_heads, -1))  # [batch, keys, heads, nope]
        k = torch.cat((k, rope_key.expand(-1, -1, self.num_heads, -1)), -1)
        v = self.value_up(latent).unflatten(
            -1, (self.num_heads, -1)
        )  # [batch, keys, heads, value_dim]
        return self.attend(q, k, v, mask, scores)

    def _absorbed(self, q: Heads, kept: Heads, mask: AttentionMask, scores: ScoreMods) -> Heads:
        """Attend to latents: all heads have the key [c, k'] and the value c."""
        # Queries of all heads are rows of one product; kernels for grouped heads would copy the key per head.
        nope, rope = q.split(self.widths, -1)
        to_keys = self.key_up.weight.unflatten(0, (self.num_heads, -1))  # [heads, nope, rank]
        to_values = self.value_up.weight.unflatten(
            0, (self.num_heads, -1)
        )  # [heads, value_dim, rank]
        # [batch, length, heads, rank + rope]
        q = torch.cat((torch.einsum("bthn,hnr->bthr", nope, to_keys), rope), -1)
        # [batch, length, heads, rank]
        mixed = _mixed_latents(q, kept, self.rank, mask, scores)
        # [batch, length, heads, value_dim]
        return torch.einsum("bthr,hvr->bthv", mixed, to_values)

    def extra_repr(self) -> str:
        nope, rope = self.widths
        return f"{self.num_heads} heads of {nope} + {rope}, values of {self.value_dim}, latent of {self.rank}"
