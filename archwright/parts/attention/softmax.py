"""Softmax attention in heads, from MHA over GQA to MQA."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.attention.alone import alone
from archwright.parts.attention.scales import QUERY_TEMPERATURES, SCORE_SCALES, Temperature
from archwright.parts.kernels import KERNELS, ScoreMods
from archwright.parts.linear import Linear, linears_joint_backward, to_autocast_dtype
from archwright.parts.masks import AttentionMask
from archwright.parts.positions import Rotary, Rotation, follows_length
from archwright.parts.positions import rotation as rotation_at
from archwright.spec import attention as spec
from archwright.spec.attention import NoQueryTemperature
from archwright.spec.sizes import heads

Heads = Tensor
"""[batch, length, heads, head_dim], with the number of heads of queries or of keys and values."""


@runtime_checkable
class KVCache(Protocol):
    """What an attention knows of a cache."""

    def update(self, *new: Tensor) -> list[Tensor]:
        """Keep keys and values of new tokens; return those of all tokens that these may see."""


class SoftmaxAttention(nn.Module):
    """out(concat_h(softmax(scale q_h k_g^T) v_g)): head h reads key-value head
    g = h // (num_heads / num_kv_heads).

    Queries and keys are normed if asked, turned by the rotary part, or get a bias of their scores from
    the relative part; what enters `out` may be normed too. Shapes: x and the result [batch, length, dim];
    q [batch, length, num_heads, head_dim]; k with num_kv_heads, and v with value_head_dim.

    Vaswani et al., 2017, section 3.2; Ainslie et al., 2023, GQA; options as in the spec.

    Args:
        spec: sizes that it leaves open follow from `dim`.
        relative: adds a bias to scores; one that all layers share is not owned here.
        shared: whether `relative` belongs to the model.
        layer_number: which layer this is, counted from 1, for a score scale that asks for it.
    """

    def __init__(
        self,
        spec: spec.SoftmaxAttention,
        dim: int,
        *,
        query_norm: nn.Module,
        key_norm: nn.Module,
        value_norm: nn.Module | None = None,
        out_norm: nn.Module | None = None,
        rotary: Rotary | None = None,
        relative: nn.Module | None = None,
        shared: bool = False,
        layer_number: int = 1,
    ) -> None:
        super().__init__()
        sizes = heads(spec, dim)
        self.spec = spec.model_copy(update=sizes)
        self.num_heads, num_kv_heads = sizes["num_heads"], sizes["num_kv_heads"]
        self.head_dim, self.value_dim = sizes["head_dim"], sizes["value_head_dim"]
        self.scale: float = SCORE_SCALES.make(spec.scale, self.head_dim, layer_number)
        width = self.num_heads * self.value_dim
        self.query = Linear(dim, self.num_heads * self.head_dim, bias=spec.bias.query)
        self.key = Linear(dim, num_kv_heads * self.head_dim, bias=spec.bias.key)
        self.value = Linear(dim, num_kv_heads * self.value_dim, bias=spec.bias.value)
        self.out = Linear(width, dim, bias=spec.bias.out, is_residual_output=True)
        gates = {"none": 0, "head": self.num_heads, "value": width}[spec.gate]
        self.gate = Linear(dim, gates) if gates else None
        self.query_norm, self.key_norm, self.value_norm = query_norm, key_norm, value_norm
        self.out_norm = out_norm
        self.sinks = nn.Parameter(torch.zeros(self.num_heads)) if spec.sinks else None
        self.position = None if shared else relative
        self.temperature: Temperature | None = None
        if not isinstance(spec.query_temperature, NoQueryTemperature):
            self.temperature = QUERY_TEMPERATURES.make(spec.query_temperature)
        self.kernel = KERNELS["sdpa"]
        self._shared = (rotary, relative)  # the tuple keeps what the model owns from registration

    @property
    def inputs(self) -> list[Linear]:
        """The maps that read x, which a parallel layer computes together with those of other branches."""
        return [self.query, self.key, self.value, *([] if self.gate is None else [self.gate])]

    @property
    def flops_per_pair(self) -> int:
        """FLOPs of all heads for one query and one key it sees: their score, and its share of the value."""
        return 2 * self.num_heads * (self.head_dim + self.value_dim)

    @property
    def kept_per_token(self) -> int:
        """Numbers that a cache keeps of a token."""
        return self.key.d_out + self.value.d_out

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
        """Return what the heads make of x.

        A model gives `view`, `rotation` and `memory`. Alone, each row is a text that begins at position 0, seen
        through the mask of the spec, or through `attention_mask` in its place: True where a query may see a key,
        [batch or 1, heads or 1, queries, keys] or without heads.

        Raises:
            UserError: an `attention_mask` of another shape, or of no booleans.
        """
        if view is None:
            view, rotation = alone(self.spec, x, self._shared[0], attention_mask)
        if projected is None:
            projected = linears_joint_backward(to_autocast_dtype(x), self.inputs)
        widths = (self.head_dim, self.head_dim, self.value_dim)
        q, k, v = (self._heads(p, width) for p, width in zip(projected, widths, strict=False))
        q, k, v = self._normed(q, k, v)
        q, k, v = self._rotate_and_cache(q, k, v, view, rotation, memory)
        q = self._apply_query_temperature(q, view)
        relative = self._shared[1]
        bias = None
        if relative is not None:
            q, bias = relative(q, view, self.scale)
        mixed = self.kernel(q, k, v, view, self._scores(bias))
        if self.gate is not None:
            gate = torch.sigmoid(projected[3])
            mixed = mixed * gate.view(*mixed.shape[:3], -1)
        mixed = mixed.flatten(-2)
        out: Tensor = self.out(mixed if self.out_norm is None else self.out_norm(mixed))
        return out

    def _heads(self, projected: Tensor, width: int) -> Heads:
        """Cut a projection into heads, after its clip."""
        if self.spec.qkv_clip != "none":
            projected = projected.clamp(-self.spec.qkv_clip, self.spec.qkv_clip)
        return projected.view(*projected.shape[:-1], -1, width)

    def _normed(self, q: Heads, k: Heads, v: Heads) -> tuple[Heads, Heads, Heads]:
        if self.spec.qk_norm_position == "before":
            q, k = self._qk_normed(q, k)
        if self.value_norm is not None:
            v = self.value_norm(v)
        return q, k, v if self.spec.value_scale == 1 else v * self.spec.value_scale

    def _qk_normed(self, q: Heads, k: Heads) -> tuple[Heads, Heads]:
        if self.spec.qk_norm_over == "projection":
            q = self.query_norm(q.flatten(-2)).unflatten(-1, (-1, self.head_dim))
            return q, self.key_norm(k.flatten(-2)).unflatten(-1, (-1, self.head_dim))
        return self.query_norm(q), self.key_norm(k)

    def _rotate_and_cache(
        self,
        q: Heads,
        k: Heads,
        v: Heads,
        view: AttentionMask,
        rotation: Rotation | None,
        memory: KVCache | None,
    ) -> tuple[Heads, Heads, Heads]:
        """Turn queries and keys, norm them if that comes after, and join the keys that were read before.

        Where angles follow the length of the text, kept keys are not turned yet: all turn anew.
        """
        rotary = self._shared[0]
        late = memory is not None and follows_length(rotary)
        if late and memory is not None:
            k, v = memory.update(k, v)
        if rotary is not None and rotation is not None:
            of_keys = rotation
            if late and view.kept is not None:
                of_keys = rotation_at(rotary, view.kept)
            q, k = rotary.rotate(q, rotation), rotary.rotate(k, of_keys)
        if self.spec.qk_norm_position == "after":
            q, k = self._qk_normed(q, k)
        if memory is not None and not late:
            k, v = memory.update(k, v)
        return q, k, v

    def _apply_query_temperature(self, q: Heads, view: AttentionMask) -> Heads:
        """Multiply queries by what grows with their position."""
        if self.temperature is None:
            return q
        wide = torch.promote_types(q.dtype, torch.float32)
        factor = self.temperature(view.places.position_ids_or_range(), wide)
        return q * factor[..., None, None].to(q.dtype)

    def _scores(self, bias: Any) -> ScoreMods:
        return ScoreMods(
            self.scale,
            self.spec.dropout if self.training else 0.0,
            None if self.spec.softcap == "none" else self.spec.softcap,
            bias,
            self.sinks,
        )

    def reset_parameters(self) -> None:
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)

    def extra_repr(self) -> str:
        return f"{self.num_heads} heads of {self.head_dim}, {self.spec.num_kv_heads} kv"
