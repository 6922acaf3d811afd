"""Softmax attention: multi-head, grouped-query and multi-query; base class of attention with a mask."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.context import Context
from archwright.parts.kernels import KERNELS, ScoreMods, kernel_of
from archwright.parts.kernels.scores import Bias, RepeatedKeys
from archwright.parts.leaves import is_watched
from archwright.parts.linear import Linear, project, set_blocks
from archwright.parts.masks import AttentionMask, max_length
from archwright.parts.mixers.base import Mixer
from archwright.parts.mixers.scales import QUERY_TEMPERATURES, SCORE_SCALES, Temperature
from archwright.parts.mixers.value_embeddings import VALUE_EMBEDDINGS
from archwright.parts.norms import NORMS
from archwright.parts.positions import follows_length, rotation
from archwright.parts.sharing import LayerInfo
from archwright.parts.states import KVCache
from archwright.parts.tensor_parallel import TensorParallel, parallel_of
from archwright.spec import attention as specs
from archwright.spec.masks import Mask
from archwright.spec.norms import Norm
from archwright.spec.scores import NoQueryTemperature

Heads = Tensor
"""[batch, length, heads, head_dim], with the number of heads of queries or of keys and values."""


class AttentionMixer(Mixer):
    """Base class of attention with a mask, positions, a kernel and a KV cache.

    Args:
        mask: mask from queries to keys.
        key_dim: width of queries and keys per head.
        rotary_dim: rotated part of `key_dim`; default: all.
    """

    has_kernel = True

    def __init__(
        self,
        mask: Mask,
        dim: int,
        layer: LayerInfo,
        num_heads: int,
        *,
        key_dim: int,
        rotary_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.mask_differs_by_head = mask.differs_by_head
        self.pattern = layer.pattern(mask, num_heads)
        two_way = self.pattern.value.lookahead != 0
        self.rotary = layer.rotary(rotary_dim or key_dim)
        self.relative = layer.relative(dim, num_heads, key_dim, two_way=two_way)
        self.kernel = kernel_of("sdpa")

    @property
    @abstractmethod
    def kept_per_token(self) -> int:
        """Numbers per token in the cache."""

    @property
    def kept_blocks(self) -> int:
        """Number of equal blocks by which ranks may split the cache: heads; 1: all heads read all numbers."""
        return self.num_heads

    def parallel_by_heads(self, per_head: Mapping[str, int], **sizes: int) -> TensorParallel | None:
        """Return the split by heads; None if the mask or positions need all heads."""
        position = None if self.relative is None else self.relative.value
        needs_all = position is not None and parallel_of(position) is None
        # Angles are computed once for all layers, outside of the split modules.
        learned = self.rotary is not None and any(True for _ in self.rotary.value.parameters())
        if self.mask_differs_by_head or needs_all or learned:
            return None
        return TensorParallel({"num_heads": self.num_heads, **sizes}, per_head)

    @property
    def own_position(self) -> nn.Module | None:
        """Relative position module, if layers do not share it. A mixer registers it as `position`, after its maps."""
        return None if self.relative is None or self.relative.name else self.relative.value

    @property
    def generates_indefinitely(self) -> bool:  # type: ignore[override]
        return self.pattern.value.lookback is not None

    @property
    def caches_unrotated(self) -> bool:  # type: ignore[override]
        """True if angles depend on the sequence length, so that the cache contains keys before rotation."""
        return self.rotary is not None and follows_length(self.rotary.value)

    def rotation_of_keys(self, context: Context, mask: AttentionMask) -> Any:
        """Return the rotation of the new keys, or of all keys if the cache contains unrotated keys."""
        assert self.rotary is not None
        if mask.keys_at is mask.layout or not self.caches_unrotated:
            return context.rotation(self.rotary)
        return rotation(self.rotary.value, mask.keys_at)

    def rotate_and_cache(
        self,
        q: Heads,
        k: Heads,
        v: Heads,
        context: Context,
        mask: AttentionMask,
        state: KVCache | None,
        normed: Callable[[Heads, Heads], tuple[Heads, Heads]] | None = None,
    ) -> tuple[Heads, Heads, Heads]:
        """Return rotated and normed queries, and all keys and values including the cache."""
        if self.caches_unrotated:
            k, v = context.all_keys(state, k, v)
        if self.rotary is not None:
            q = self.rotary.value.rotate_query(q, context.rotation(self.rotary))
            k = self.rotary.value.rotate_key(k, self.rotation_of_keys(context, mask))
        if normed is not None:
            q, k = normed(q, k)
        if not self.caches_unrotated:
            k, v = context.all_keys(state, k, v)
        return q, k, v

    def scores(
        self, query: Heads, key: Heads, mask: AttentionMask, scale: float
    ) -> Float[Tensor, "batch heads queries keys"]:
        """Return scale q k^T plus the position bias, -inf for hidden keys, for weights other than softmax."""
        bias: Bias | None = None
        if self.relative is not None:
            query, bias = self.relative.value(query, mask, scale)
        if mask.pattern.repeats:
            bias = RepeatedKeys(mask.log_times, bias)
        added = None if bias is None else bias.block(0, query.shape[1], 0, key.shape[1])
        key = key.repeat_interleave(query.shape[2] // key.shape[2], dim=2)
        products = torch.einsum("bqhd,bkhd->bhqk", query, key)  # [batch, heads, queries, keys]
        return ScoreMods(scale).scores(products, None if mask.is_full else ~mask.dense, added)

    def attend(
        self, query: Heads, key: Heads, value: Heads, mask: AttentionMask, scores: ScoreMods
    ) -> Heads:
        """Return the attention output, computed by the selected kernel."""
        if mask.pattern.repeats:
            scores = replace(scores, bias=RepeatedKeys(mask.log_times, scores.bias))
        return self.kernel.run(query, key, value, mask, scores)

    def new_state(self, batch: int) -> KVCache:
        return KVCache(max_length(self.pattern.value))

    def state_bytes(self, length: int, itemsize: int) -> int:
        window = max_length(self.pattern.value)
        return (length if window is None else min(length, window)) * self.kept_per_token * itemsize

    def prepare(self, context: Context) -> None:
        self.prepare_mask(context.mask(self.pattern, self.num_heads))
        if self.rotary is not None:
            context.rotation(self.rotary)

    def prepare_mask(self, mask: AttentionMask) -> None:
        """Prepare a mask for the kernel, outside of compiled layers; a trace needs no mask."""
        if is_watched():
            return
        self.kernel.prepare(mask)
        # A compiled layer only reads the cached property.
        if mask.pattern.needs_length:
            _ = mask.text_lengths

    def kernels(self) -> Sequence[str]:
        return [name for name in KERNELS if name != "flex"] if self.has_kernel else []

    def use_kernel(self, name: str) -> None:
        self.kernel = kernel_of(name)


class SoftmaxAttention(AttentionMixer):
    """out(concat_h(softmax(scale q_h k_g^T) v_g)), with key-value head g = h // (num_heads / num_kv_heads).

    The spec may add norms of queries, keys, values and the input of `out`, rotary positions, and biases of scores. With
    `shares_kv`, k and v are those of an earlier layer, normed and rotated.
    Shapes: x and the result [batch, length, dim]; q [batch, length, num_heads, head_dim]; k [batch, length,
    num_kv_heads, head_dim]; v [batch, length, num_kv_heads, value_head_dim].

    Vaswani et al., 2017, section 3.2; Ainslie et al., 2023, GQA; options as in the spec.

    Args:
        spec: open sizes follow from `dim`.
        layer: place in the model; without it, the mixer has no positions.
    """

    def __init__(
        self, spec: specs.SoftmaxAttention, dim: int, layer: LayerInfo | None = None
    ) -> None:
        layer, sizes = layer or LayerInfo(), spec.heads(dim)
        num_heads, num_kv_heads = sizes["num_heads"], sizes["num_kv_heads"]
        head_dim, value_dim = sizes["head_dim"], sizes["value_head_dim"]
        super().__init__(spec.mask, dim, layer, num_heads, key_dim=head_dim)
        self.spec = spec.model_copy(update=sizes)
        self.num_kv_heads, self.head_dim, self.value_dim = num_kv_heads, head_dim, value_dim
        self.scale: float = SCORE_SCALES.make(spec.scale, self.head_dim, layer.number)
        width = num_heads * value_dim
        self.query = Linear(dim, num_heads * head_dim, bias=spec.bias.query, deepnorm=False)
        self.query.score_gain = self.scale * head_dim**0.5
        widths = (num_kv_heads * head_dim, num_kv_heads * value_dim)
        names = [f"{name}_{layer.kv_source}" for name in ("keys", "values")]
        self.key: Linear | None = None
        self.value: Linear | None = None
        if spec.shares_kv:
            self.reads_state_of = layer.kv_source
            self.reads_from = dict.fromkeys(names, layer.kv_source)
        else:
            self.key = Linear(dim, widths[0], bias=spec.bias.key, deepnorm=False)
            if not spec.keys_as_values:
                self.value = Linear(dim, widths[1], bias=spec.bias.value)
        if layer.kv_sources.count(layer.number) > 1:
            self.provides = dict(zip(names, widths, strict=True))
        self.out = Linear(width, dim, bias=spec.bias.out, is_residual_output=True)
        gates = {"none": 0, "head": num_heads, "value": width}[spec.gate]
        self.gate = Linear(dim, gates) if gates else None
        set_blocks(num_heads, self.query, self.out, self.gate)
        set_blocks(num_kv_heads, self.key, self.value)
        self.query_norm = self._norm_of_heads(spec.qk_norm, num_heads)
        if not spec.shares_kv:
            self.key_norm = self._norm_of_heads(spec.qk_norm, num_kv_heads)
            self.value_norm: nn.Module = NORMS.make(spec.v_norm, value_dim)
        self.out_norm: nn.Module = NORMS.make(spec.out_norm, width)
        self.value_embedding: nn.Module | None = None
        self.value_mix: nn.Module | None = None
        if not spec.value_embedding.is_none:
            values = num_kv_heads * value_dim
            self.value_embedding = layer.token_table(values, "attention.value_embedding")
            self.value_mix = VALUE_EMBEDDINGS.make(spec.value_embedding, dim, num_kv_heads)
        self.sinks = nn.Parameter(torch.zeros(num_heads)) if spec.sinks else None
        self.temperature: Temperature | None = None
        if not isinstance(spec.query_temperature, NoQueryTemperature):
            self.temperature = QUERY_TEMPERATURES.make(spec.query_temperature)
        self.position = self.own_position

    @property
    def inputs(self) -> list[Linear]:
        maps = (self.query, self.key, self.value, self.gate)
        return [m for m in maps if m is not None]

    @property
    def kept_per_token(self) -> int:
        return 0 if self.key is None else self.num_kv_heads * (self.head_dim + self.value_dim)

    @property
    def kept_blocks(self) -> int:
        return self.num_kv_heads

    @property
    def along_text(self) -> str:
        return ""

    @property
    def tensor_parallel(self) -> TensorParallel | None:
        spec = self.spec
        # A norm over all heads needs all of them on one rank.
        over_all = spec.qk_norm_over == "projection" and not spec.qk_norm.is_none
        mixes = self.value_mix is None or parallel_of(self.value_mix)
        if over_all or not spec.out_norm.is_none or not mixes:
            return None
        # A single key-value head is replicated.
        sizes = {"num_kv_heads": self.num_kv_heads} if self.num_kv_heads > 1 else {}
        per_head = {} if self.sinks is None else {"sinks": 0}
        if sizes and self.value_embedding is not None:
            per_head["value_embedding.weight"] = 1
        norms = ("query_norm", "key_norm") if sizes and self.key is not None else ("query_norm",)
        for norm in norms:
            named = self.get_submodule(norm).named_parameters()
            # [heads, head_dim] if each head has a separate weight
            per_head |= {f"{norm}.{name}": 0 for name, p in named if p.ndim == 2}
        return self.parallel_by_heads(per_head, **sizes)

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        context: Context | None = None,
        state: KVCache | None = None,
        projected: Sequence[Tensor] | None = None,
        *,
        attention_mask: Tensor | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return the mixer's output.

        Without a context, each sequence is a text from position 0. `attention_mask` then replaces the mask of the spec:
        True if a query sees a key, [batch or 1, heads or 1, queries, keys] or without heads.

        Raises:
            UserError: `attention_mask` has another shape or dtype.
        """
        if context is None:
            context = Context.alone(x, attention_mask)
        mask = context.mask(self.pattern, self.num_heads)
        if projected is None:
            projected = project(x, self.inputs)
        if self.key is None:
            q, k, v = self._with_shared_keys(projected[0], context)
        else:
            # q, k, v = W_q x, W_k x, W_v x by head, q and k rotated
            q, k, v = self._with_own_keys(projected, x, context, mask, state)
        q = self._apply_query_temperature(q, mask)
        bias = None
        if self.relative is not None:
            q, bias = self.relative.value(q, mask, self.scale)
        dropout = self.spec.dropout if self.training else 0.0
        softcap = None if self.spec.softcap == "none" else self.spec.softcap
        mods = ScoreMods(self.scale, dropout, softcap, bias, self.sinks)
        # softmax(scale q k^T) v: [batch, length, heads, value_dim]
        mixed = self.attend(q, k, v, mask, mods)
        if self.gate is not None:
            # One gate for each head or each value: [batch, length, heads, 1 or value_dim].
            mixed = mixed * torch.sigmoid(projected[-1]).view(*mixed.shape[:3], -1)
        # W_o mixed: [batch, length, dim]
        out: Tensor = self.out(self.out_norm(mixed.flatten(-2)))
        return out

    def _norm_of_heads(self, norm: Norm, num_heads: int) -> nn.Module:
        """Return the norm of queries or keys, over each head or over the projection of all heads."""
        over = self.spec.qk_norm_over
        width = num_heads * self.head_dim if over == "projection" else self.head_dim
        heads = {"heads": num_heads} if over == "per_head" else {}
        module: nn.Module = NORMS.make(norm, width, **heads)
        return module

    def _with_own_keys(
        self,
        projected: Sequence[Tensor],
        x: Float[Tensor, "batch length dim"],
        context: Context,
        mask: AttentionMask,
        state: KVCache | None,
    ) -> tuple[Heads, Heads, Heads]:
        """Return queries of x, and keys and values of all tokens, normed and rotated."""
        q, k = projected[:2]
        v = k if self.value is None else projected[2]
        if (limit := self.spec.qkv_clip) != "none":
            q, k, v = (p.clamp(-limit, limit) for p in (q, k, v))
        q = q.unflatten(-1, (self.num_heads, self.head_dim))  # [batch, length, heads, head_dim]
        k = k.unflatten(-1, (self.num_kv_heads, self.head_dim))
        # [batch, length, num_kv_heads, value_dim]
        v = v.unflatten(-1, (self.num_kv_heads, self.value_dim))
        # "before" or "after" rotary positions
        if self.spec.qk_norm_position == "before":
            q, k = self._qk_normed(q, k)
        v = self.value_norm(v)
        v = v if self.spec.value_scale == 1 else v * self.spec.value_scale
        if self.value_embedding is not None and self.value_mix is not None:
            rows = self.value_embedding(context.tokens).to(v.dtype)
            # [batch, length, num_kv_heads, value_dim]
            v = self.value_mix(v, rows.view(v.shape), x)
        normed = self._qk_normed if self.spec.qk_norm_position == "after" else None
        q, k, v = self.rotate_and_cache(q, k, v, context, mask, state, normed)
        for name, value in zip(self.provides, (k, v), strict=False):
            context.provide(name, value)
        return q, k, v

    def _with_shared_keys(self, q: Tensor, context: Context) -> tuple[Heads, Heads, Heads]:
        """Return queries, normed and rotated, and the keys and values of the layer that provides them.

        These include cached tokens, because the provider has added its new ones to the cache.
        """
        if (limit := self.spec.qkv_clip) != "none":
            q = q.clamp(-limit, limit)
        q = q.unflatten(-1, (self.num_heads, self.head_dim))  # [batch, length, heads, head_dim]
        norm_first = self.spec.qk_norm_position == "before"
        q = self._normed(self.query_norm, q) if norm_first else q
        if self.rotary is not None:
            q = self.rotary.value.rotate_query(q, context.rotation(self.rotary))
        q = q if norm_first else self._normed(self.query_norm, q)
        k, v = map(context.read, self.reads_from)
        return q, k, v

    def _qk_normed(self, q: Heads, k: Heads) -> tuple[Heads, Heads]:
        return self._normed(self.query_norm, q), self._normed(self.key_norm, k)

    def _normed(self, norm: nn.Module, heads: Heads) -> Heads:
        """Return heads after a norm over each of them or over all together."""
        if self.spec.qk_norm_over != "projection":
            normed: Heads = norm(heads)
        else:  # [batch, length, heads * head_dim] and back
            normed = norm(heads.flatten(-2)).unflatten(-1, (-1, self.head_dim))
        return normed

    def _apply_query_temperature(self, q: Heads, mask: AttentionMask) -> Heads:
        """Multiply queries by a temperature that depends on their position."""
        if self.temperature is None:
            return q
        dtype = torch.promote_types(q.dtype, torch.float32)
        factor = self.temperature(mask.layout.position_ids_or_range(), dtype)
        return q * factor[..., None, None].to(q.dtype)  # [rows, length, 1, 1]

    def reset_parameters(self) -> None:
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)

    def extra_repr(self) -> str:
        return f"{self.num_heads} heads of {self.head_dim}, {self.num_kv_heads} kv"
