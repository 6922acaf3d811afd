"""Interface of mixers, which exchange information between tokens."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.branch import Branch
from archwright.parts.context import Context
from archwright.parts.kernels import KERNELS, ScoreMods, kernel_of, prepare
from archwright.parts.kernels.scores import Bias, RepeatedKeys
from archwright.parts.masks import AttentionMask, max_length
from archwright.parts.positions import follows_length, rotation
from archwright.parts.sharing import LayerInfo
from archwright.parts.states import KVCache, LayerState
from archwright.parts.tensor_parallel import TensorParallel, parallel_of
from archwright.spec.masks import Mask

Heads = Tensor
"""[batch, length, heads, head_dim], with the number of heads of queries or of keys and values."""


class Mixer(Branch, ABC):
    """Branch with interactions between tokens: y = mix(x), shapes [batch, length, dim].

    The constructor has arguments (spec, dim, layer), with `layer` a `LayerInfo`, and builds all maps and norms.
    Only `forward` is abstract. Without a state, a mixer processes full sequences only.
    """

    reads_state_of: int | None = None
    """Number, from 1, of an earlier layer with the state that this mixer reads; None: no shared state."""

    generates_indefinitely: bool = True
    """True if the cost of the next token is bounded for any sequence length."""
    has_kernel: bool = False
    """True if the mixer computes attention with the kernel from `use_kernel`."""
    chunk_size: int | None = None
    """Tokens per chunk, which affects speed and memory but not results; None: no chunks."""

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        context: Context,
        state: Any = None,
        projected: Sequence[Tensor] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return the mixed hidden states.

        Args:
            context: token layout, masks and rotations of this pass.
            state: state of earlier tokens, updated in place.
            projected: results of `inputs`, if the layer computed them.
        """

    def new_state(self, batch: int) -> LayerState | None:
        """Return the empty state of `batch` sequences; None: the mixer cannot continue a sequence.

        A mixer without memory returns an empty `RecurrentState`. Mixers with `reads_state_of` do not need this method.
        """
        return None

    @property
    def can_cache(self) -> bool:
        """True if the mixer can continue a sequence from its state or another layer's state."""
        return self.reads_state_of is not None or self.new_state(1) is not None

    def state_bytes(self, length: int, itemsize: int) -> int:
        """Return the bytes of the state after `length` tokens of one sequence, at `itemsize` bytes per number."""
        return 0

    @property
    def kept_blocks(self) -> int | None:
        """Number of equal blocks by which ranks may split the state: heads; 1: no split; None: any split."""
        return None

    @property
    def along_text(self) -> str:
        return "kind"

    def prepare(self, context: Context) -> None:
        """Compute masks and rotations of a pass, before a layer that may be compiled."""

    def kernels(self) -> Sequence[str]:
        """Return the names of kernels with forward and backward passes on CPU, the reference first."""
        return ()

    def use_kernel(self, name: str) -> None:
        """Select the kernel for attention or a scan, if the mixer has kernels."""


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
    def caches_unrotated(self) -> bool:
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
        return self.kernel(query, key, value, mask, scores)

    def new_state(self, batch: int) -> KVCache:
        return KVCache(max_length(self.pattern.value))

    def state_bytes(self, length: int, itemsize: int) -> int:
        window = max_length(self.pattern.value)
        return (length if window is None else min(length, window)) * self.kept_per_token * itemsize

    def prepare(self, context: Context) -> None:
        prepare(self.kernel, context.mask(self.pattern, self.num_heads))
        if self.rotary is not None:
            context.rotation(self.rotary)

    def kernels(self) -> Sequence[str]:
        return [name for name in KERNELS if name != "flex"] if self.has_kernel else []

    def use_kernel(self, name: str) -> None:
        self.kernel = kernel_of(name)
