"""Multi-head latent attention: keys and values of all heads from one narrow vector."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.attention.alone import alone
from archwright.parts.attention.scales import SCORE_SCALES
from archwright.parts.attention.softmax import Heads, KVCache
from archwright.parts.kernels import KERNELS, ScoreMods
from archwright.parts.linear import Linear, linears_joint_backward, to_autocast_dtype
from archwright.parts.masks import AttentionMask
from archwright.parts.positions import Rotary, Rotation, follows_length
from archwright.parts.positions import rotation as rotation_at
from archwright.spec import attention as spec
from archwright.spec.sizes import heads


class LatentAttention(nn.Module):
    """out(concat_h(softmax(scale (q_h k_h^T + turned(q'_h) turned(k')^T)) v_h)), with
    k_h = K_h c, v_h = V_h c, c = norm(latent(x)), k' = rope_key(x), and [q_h, q'_h] from x or from a
    latent of its own.

    A cache keeps c and k'. A few new tokens beside many kept ones are computed without their keys and
    values: q_h k_h^T = (q_h K_h) c^T, and the heads' mixtures of c become those of v_h by V_h.

    Shapes: x and the result [batch, length, dim]; q_h and k_h [..., nope_head_dim]; q'_h and k'
    [..., rope_head_dim]; v_h [..., value_head_dim]; c [..., kv_rank].
    DeepSeek-AI, 2024, DeepSeek-V2, section 2.1 and appendix C.

    Args:
        spec: sizes that it leaves open follow from `dim`.
        relative: adds a bias to scores; one that all layers share is not owned here.
        shared: whether `relative` belongs to the model.
        layer_number: which layer this is, counted from 1, for a score scale that asks for it.
    """

    def __init__(
        self,
        spec: spec.LatentAttention,
        dim: int,
        *,
        query_norm: nn.Module | None,
        latent_norm: nn.Module,
        rotary: Rotary | None = None,
        relative: nn.Module | None = None,
        shared: bool = False,
        layer_number: int = 1,
    ) -> None:
        super().__init__()
        sizes = heads(spec, dim)
        self.spec = spec.model_copy(update=sizes)
        self.num_heads, self.rank = sizes["num_heads"], sizes["kv_rank"]
        self.value_dim = sizes["value_head_dim"]
        self.widths = (sizes["nope_head_dim"], sizes["rope_head_dim"])
        self.scale: float = SCORE_SCALES.make(spec.scale, sum(self.widths), layer_number)
        width = self.num_heads * sum(self.widths)
        if spec.query_rank == "none":
            self.query = Linear(dim, width)
        else:
            self.query_down = Linear(dim, spec.query_rank, bias=spec.bias.query_down)
            self.query_up = Linear(spec.query_rank, width)
        self.query_norm = None if spec.query_rank == "none" else query_norm
        self.latent = Linear(dim, self.rank, bias=spec.bias.latent)
        self.latent_norm = latent_norm
        self.rope_key = Linear(dim, self.widths[1], bias=spec.bias.rope_key)
        self.key_up = Linear(self.rank, self.num_heads * self.widths[0])
        self.value_up = Linear(self.rank, self.num_heads * self.value_dim)
        self.out = Linear(
            self.num_heads * self.value_dim, dim, bias=spec.bias.out, is_residual_output=True
        )
        self.position = None if shared else relative
        self.kernel = KERNELS["sdpa"]
        self._shared = (rotary, relative)  # the tuple keeps what the model owns from registration

    @property
    def inputs(self) -> list[Linear]:
        """The maps that read x, which a parallel layer computes together with those of other branches."""
        first = self.query if self.spec.query_rank == "none" else self.query_down
        return [first, self.latent, self.rope_key]

    @property
    def flops_per_pair(self) -> int:
        """FLOPs of all heads for one query and one key it sees: their score, and its share of the value."""
        return 2 * self.num_heads * (sum(self.widths) + self.value_dim)

    @property
    def kept_per_token(self) -> int:
        """Numbers that a cache keeps of a token."""
        return self.rank + self.widths[1]

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        view: AttentionMask | None = None,
        rotation: Rotation | None = None,
        memory: KVCache | None = None,
        projected: Sequence[Tensor] | None = None,
        *,
        attention_mask: Tensor | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return what the heads make of x; alone or in a model, as `SoftmaxAttention.forward`."""
        if view is None:
            view, rotation = alone(self.spec, x, self._shared[0], attention_mask)
        if projected is None:
            projected = linears_joint_backward(to_autocast_dtype(x), self.inputs)
        q = projected[0]
        if self.query_norm is not None:
            q = self.query_up(self.query_norm(q))
        q = q.unflatten(-1, (self.num_heads, -1))
        kept = torch.cat((self.latent_norm(projected[1]), projected[2]), -1)[:, :, None]
        q, kept = self._rotate_and_cache(q, kept, view, rotation, memory)
        relative, bias = self._shared[1], None
        if relative is not None:
            q, bias = relative(q, view, self.scale)
        absorbs = view.kept is not None and self._absorbs(q.shape[1], kept.shape[1])
        mix = self._absorbed if absorbs else self._expanded
        out: Tensor = self.out(mix(q, kept, view, self._scores(bias)).flatten(-2))
        return out

    def _rotate_and_cache(
        self,
        q: Heads,
        kept: Heads,
        view: AttentionMask,
        rotation: Rotation | None,
        memory: KVCache | None,
    ) -> tuple[Heads, Heads]:
        """Turn the last coordinates of queries and kept vectors, and join those that were read before.

        Where angles follow the length of the text, kept keys are not turned yet: all turn anew.
        """
        rotary = self._shared[0]
        late = memory is not None and follows_length(rotary)
        if late and memory is not None:
            (kept,) = memory.update(kept)
        if rotary is not None and rotation is not None:
            of_keys = rotation
            if late and view.kept is not None:
                of_keys = rotation_at(rotary, view.kept)
            q, kept = self._turned(q, rotary, rotation), self._turned(kept, rotary, of_keys)
        if memory is not None and not late:
            (kept,) = memory.update(kept)
        return q, kept

    def _turned(self, x: Heads, rotary: Rotary, rotation: Rotation) -> Heads:
        passthrough, rotating = x[..., : -self.widths[1]], x[..., -self.widths[1] :]
        return torch.cat((passthrough, rotary.rotate(rotating, rotation)), -1)

    def _absorbs(self, queries: int, keys: int) -> bool:
        """Whether what keys and values cost to make is more than what wider scores and mixtures cost."""
        narrow = self.widths[0] + self.value_dim
        return (keys - queries) * self.rank * narrow > queries * keys * (2 * self.rank - narrow)

    def _expanded(self, q: Heads, kept: Heads, view: AttentionMask, scores: ScoreMods) -> Heads:
        latent, rope_key = kept[:, :, 0, : self.rank], kept[..., self.rank :]
        k = self.key_up(latent).unflatten(-1, (self.num_heads, -1))
        k = torch.cat((k, rope_key.expand(-1, -1, self.num_heads, -1)), -1)
        v = self.value_up(latent).unflatten(-1, (self.num_heads, -1))
        return self.kernel(q, k, v, view, scores)

    def _absorbed(self, q: Heads, kept: Heads, view: AttentionMask, scores: ScoreMods) -> Heads:
        """All heads share one key, the kept vector itself, and one value, its latent: their queries are rows of
        one product, where kernels for groups of heads would copy the key for each."""
        nope, rope = q.split(self.widths, -1)
        to_keys = self.key_up.weight.unflatten(0, (self.num_heads, -1))
        to_values = self.value_up.weight.unflatten(0, (self.num_heads, -1))
        q = torch.cat((torch.einsum("bthn,hnr->bthr", nope, to_keys), rope), -1)
        products = torch.einsum("bthr,bsr->bhts", q, kept[:, :, 0])
        bias = None
        if scores.bias is not None:
            bias = scores.bias.block(0, q.shape[1], 0, kept.shape[1])
        hidden = None if view.is_full else ~view.dense
        weights = F.dropout(scores.weights(products, hidden, bias).to(kept.dtype), scores.dropout)
        mixed = torch.einsum("bhts,bsr->bthr", weights, kept[:, :, 0, : self.rank])
        return torch.einsum("bthr,hvr->bthv", mixed, to_values)

    def _scores(self, bias: Any) -> ScoreMods:
        return ScoreMods(
            self.scale,
            self.spec.dropout if self.training else 0.0,
            None if self.spec.softcap == "none" else self.spec.softcap,
            bias,
        )

    def extra_repr(self) -> str:
        nope, rope = self.widths
        return f"{self.num_heads} heads of {nope} + {rope}, values of {self.value_dim}, latent of {self.rank}"
