"""Longformer's attention: a window for most tokens, and separate maps for global tokens."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from archwright.classic.parts.equal_heads import EqualHeads
from archwright.classic.spec import longformer as spec
from archwright.parts.context import Context
from archwright.parts.linear import Linear, project, set_blocks
from archwright.parts.masks import AttentionMask, Dilated, MaskPattern, Ranges, spaced, united
from archwright.parts.mixers.attention import Heads
from archwright.parts.positions import rotation
from archwright.parts.sharing import LayerInfo, Shared
from archwright.parts.states import KVCache
from archwright.parts.token_layout import TokenLayout, rows_at


class Longformer(Dilated[spec.Longformer]):
    """|query - key| in {0, d, 2d, ..., radius d}, or query or key among the first `num_global`.

    Args:
        global_queries: False if queries of global tokens see only their windows and the global keys.
    """

    def __init__(
        self, spec: spec.Longformer, num_heads: int = 1, *, global_queries: bool = True
    ) -> None:
        super().__init__(spec.dilation, spec.dilated_heads, num_heads)
        self.spec, self.global_queries = spec, global_queries
        self.reach = spec.radius * max(self.steps)
        self.lookback = self.lookahead = None if spec.num_global else self.reach

    def visible(self, query: Tensor, key: Tensor, head: Tensor | int = 0) -> Tensor:
        distance, step = (query - key).abs(), self.step(head)
        near = (distance <= self.spec.radius * step) & (distance % step == 0)
        seen = near | (key < self.spec.num_global)
        return seen | (query < self.spec.num_global) if self.global_queries else seen

    def ranges(self, first: int, last: int, length: int) -> Ranges:
        if self.global_queries and first < self.spec.num_global:
            return [(0, length)]
        few = min(self.spec.num_global, length)
        near = (max(0, first - self.reach), min(last + self.reach + 1, length))
        return united([(0, few), near] if few else [near])

    def pairs(self, length: int) -> float:
        if not self.global_queries:
            return super().pairs(length)
        others = length - min(self.spec.num_global, length)
        near = self._mean(lambda step: 2 * spaced(others, step, self.spec.radius) - others)
        return near + length**2 - others**2


class LongformerAttention(EqualHeads[spec.LongformerAttention]):
    """out(concat_h(softmax(scale q_h k_h^T) v_h)), with separate maps for global tokens.

    Most queries use `query`, `key` and `value` within a window. Queries of global tokens see all tokens, and use
    `query_global`, `key_global` and `value_global`. There is no cache: texts are complete. Shapes: x and the result
    [batch, length, dim]; q, k and v [batch, length, num_heads, head_dim], q of global tokens [batch, num_global,
    num_heads, head_dim].

    Beltagy et al., 2020, section 3.1.

    Args:
        spec: open sizes follow from `dim`.
        layer: place in the model; without it, the mixer has no positions.
    """

    def __init__(
        self, spec: spec.LongformerAttention, dim: int, layer: LayerInfo | None = None
    ) -> None:
        super().__init__(spec, dim, layer)
        pattern = self.pattern.value
        assert isinstance(pattern, Longformer)  # the spec has no other mask
        self.num_global = pattern.spec.num_global
        name = self.pattern.name
        others: MaskPattern = Longformer(pattern.spec, pattern.num_heads, global_queries=False)
        # Global queries are computed separately, so this mask need not show them all keys.
        self.windows = Shared(name and f"{name}_windows", others)
        width = self.query.d_out
        self.query.score_gain = self.scale * self.head_dim**0.5
        self.query_global = Linear(dim, width, bias=spec.bias.query, deepnorm=False)
        self.query_global.score_gain = self.query.score_gain
        self.key_global = Linear(dim, width, bias=spec.bias.key, deepnorm=False)
        self.value_global = Linear(dim, width, bias=spec.bias.value)
        self.out = Linear(width, dim, bias=spec.bias.out, is_residual_output=True)
        of_global = (self.query_global, self.key_global, self.value_global)
        set_blocks(self.num_heads, *of_global, self.out)
        self.position = self.own_position

    @property
    def inputs(self) -> list[Linear]:
        return [self.query, self.key, self.value, self.key_global, self.value_global]

    @property
    def kept_per_token(self) -> int:
        return 0

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        context: Context | None = None,
        state: None = None,
        projected: Sequence[Tensor] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return the mixer's output; without a context, each sequence is a text from position 0."""
        if context is None:
            context = Context.alone(x)
        if projected is None:
            projected = project(x, self.inputs)
        # [batch, length, heads, head_dim]
        q, k, v, k_global, v_global = (
            p.unflatten(-1, (self.num_heads, self.head_dim)) for p in projected
        )
        at, few = self._global_tokens(context)
        mask = context.mask(self.windows, self.num_heads)
        turning = None if self.rotary is None else context.rotation(self.rotary)
        mixed = self._mixed(q, k, v, mask, turning, turning)

        # [batch, num_global, heads, head_dim]
        asked = self.query_global(rows_at(x, at)).unflatten(-1, (self.num_heads, self.head_dim))
        turned = None if self.rotary is None else rotation(self.rotary.value, few.layout)
        answered = self._mixed(asked, k_global, v_global, few, turned, turning)
        if few.layout.padding_mask is not None:  # sequences with fewer global tokens
            real = few.layout.padding_mask[..., None, None]  # [batch, num_global, 1, 1]
            answered = torch.where(real, answered, rows_at(mixed, at))
        index = at[..., None, None].expand(answered.shape)  # [batch, num_global, heads, head_dim]
        # [batch, length, dim]
        out: Tensor = self.out(mixed.scatter(1, index, answered.to(mixed.dtype)).flatten(-2))
        return out

    def _mixed(
        self,
        q: Heads,
        k: Heads,
        v: Heads,
        mask: AttentionMask,
        turning_q: object,
        turning_k: object,
    ) -> Heads:
        if self.rotary is not None:
            q = self.rotary.value.rotate_query(q, turning_q)
            k = self.rotary.value.rotate_key(k, turning_k)
        bias = None
        if self.relative is not None:
            q, bias = self.relative.value(q, mask, self.scale)
        # [batch, queries, heads, head_dim]
        return self.attend(q, k, v, mask, self.score_mods(bias))

    def _global_tokens(self, context: Context) -> tuple[Tensor, AttentionMask]:
        """Return columns [batch, num_global] of global tokens and their mask, once for all layers."""

        def make(mask: AttentionMask) -> tuple[Tensor, AttentionMask]:
            at, few = _chosen(mask.layout, self.num_global)
            return at, AttentionMask(mask.pattern, few, mask.layout)

        at, view = context.mask(self.pattern, self.num_heads).once("global tokens", make)
        return at.expand(context.batch, -1), view

    def new_state(self, batch: int) -> KVCache | None:  # type: ignore[override]
        return None

    def prepare(self, context: Context) -> None:
        self.prepare_mask(context.mask(self.windows, self.num_heads))
        if self.rotary is not None:
            context.rotation(self.rotary)
        self.prepare_mask(self._global_tokens(context)[1])

    def extra_repr(self) -> str:
        return f"{self.num_heads} heads of {self.head_dim}"


def _chosen(layout: TokenLayout, num_global: int) -> tuple[Tensor, TokenLayout]:
    """Return columns [rows, chosen] and layout of the first `num_global` tokens of each text."""
    chosen = layout.index_or_range() < num_global
    if layout.padding_mask is not None:
        chosen = chosen & layout.padding_mask
    if layout.position_ids is not None:
        chosen = chosen.expand(max(len(chosen), len(layout.position_ids)), -1)  # [rows, length]
    most, plain = min(num_global, layout.length), layout.index is None
    if not plain:
        most = max(1, int(chosen.sum(-1).max()))
    # Chosen columns first, in their order: [rows, most]
    at = chosen.long().argsort(dim=-1, descending=True, stable=True)[:, :most]

    def of_chosen(tensor: Tensor | None) -> Tensor | None:
        # [rows, chosen]
        return None if tensor is None else tensor.expand(len(at), -1).gather(1, at)

    return at, TokenLayout(
        most,
        layout.device,
        position_ids=of_chosen(layout.position_ids),
        index=of_chosen(layout.index),
        segment_ids=of_chosen(layout.segment_ids),
        padding_mask=None if plain else of_chosen(chosen),
        lengths_so_far=of_chosen(layout.lengths_so_far_or_end()),
    )
