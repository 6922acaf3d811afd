"""The contract of mixers: what exchanges information between the tokens of a text."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.branch import Branch
from archwright.parts.context import Context
from archwright.parts.kernels import KERNELS, ScoreMods, kernel_of, prepare
from archwright.parts.kernels.scores import Bias, RepeatedKeys
from archwright.parts.linear import Linear, set_blocks
from archwright.parts.masks import AttentionMask, max_length
from archwright.parts.mixers.scales import SCORE_SCALES
from archwright.parts.positions import follows_length, rotation
from archwright.parts.sharing import LayerInfo
from archwright.parts.states import KVCache, LayerState
from archwright.parts.tensor_parallel import TensorParallel, parallel_of
from archwright.spec import attention as spec
from archwright.spec.masks import Mask

S = TypeVar(
    "S",
    spec.LongformerAttention,
    spec.TransientGlobalAttention,
    spec.DisentangledAttention,
)
Heads = Tensor
"""[batch, length, heads, head_dim], with the number of heads of queries or of keys and values."""


class Mixer(Branch, ABC):
    """A branch of a layer in which tokens depend on each other: y = mix(x), shapes [batch, length, dim].

    A part is called with (spec, dim, layer), `layer` a `LayerInfo`; it builds its own maps and norms. Other members
    have a default. Without a state, a mixer reads texts as a whole.
    """

    reads_state_of: int | None = None
    """Number of the earlier layer, from 1, with the state that this mixer is given in place of one of its own."""

    generates_indefinitely: bool = True
    """Whether the next token costs the same however long the text before it is."""
    has_kernel: bool = False
    """Whether there is attention to compute, with the kernel that `use_kernel` names."""
    chunk_size: int | None = None
    """Tokens computed at once, which changes speed and memory, not the result; None: no chunks."""

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        context: Context,
        state: Any = None,
        projected: Sequence[Tensor] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return what each token takes from the tokens that it may see.

        Args:
            context: where the tokens stand, and the masks and rotations of this pass.
            state: what was kept of earlier tokens; to be updated with these.
            projected: results of `inputs`, where a layer has computed them.
        """

    def new_state(self, batch: int) -> LayerState | None:
        """Return the empty state of `batch` texts; None: the mixer cannot continue a text.

        A mixer that needs nothing of earlier tokens returns an empty `RecurrentState`. It is not called for a mixer
        with `reads_state_of`.
        """
        return None

    @property
    def can_cache(self) -> bool:
        """Whether the mixer can continue a text, from a state of its own or of another layer."""
        return self.reads_state_of is not None or self.new_state(1) is not None

    def state_bytes(self, length: int, itemsize: int) -> int:
        """Return the bytes of the state of one text of `length` tokens, with numbers of `itemsize` bytes."""
        return 0

    @property
    def kept_blocks(self) -> int | None:
        """Equal blocks of the state that devices share: heads; 1: none; None: any part."""
        return None

    @property
    def along_text(self) -> str:
        return "kind"

    def prepare(self, context: Context) -> None:
        """Do what depends on the data of a pass, ahead of a layer that may be compiled: masks, rotations."""

    def kernels(self) -> Sequence[str]:
        """Return the names of kernels with a forward and a backward pass on a CPU, the reference first."""
        return ()

    def use_kernel(self, name: str) -> None:
        """Compute attention or a scan with the kernel of this name, if it has kernels."""


class AttentionMixer(Mixer):
    """Base of attention of queries to keys: its mask, its positions, its kernel, and its cache.

    Args:
        mask: which keys a query may see.
        key_dim: width of a head's query and key.
        rotary_dim: width of the part of it that positions rotate; all of it, if not given.
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
        """Numbers that a cache keeps of a token."""

    @property
    def kept_blocks(self) -> int:
        """Equal blocks of them that devices may share: heads; 1: all heads read all of them."""
        return self.num_heads

    def parallel_by_heads(self, per_head: Mapping[str, int], **sizes: int) -> TensorParallel | None:
        """Return what processes share of heads; None if mask or positions need all heads."""
        position = None if self.relative is None else self.relative.value
        whole = position is not None and parallel_of(position) is None
        # Angles are computed once for all layers, outside of what processes share.
        learned = self.rotary is not None and any(True for _ in self.rotary.value.parameters())
        if self.mask_differs_by_head or whole or learned:
            return None
        return TensorParallel({"num_heads": self.num_heads, **sizes}, per_head)

    @property
    def own_position(self) -> nn.Module | None:
        """Module that adds to scores, if layers do not share it; a mixer registers it as `position`, after its maps."""
        return None if self.relative is None or self.relative.name else self.relative.value

    @property
    def generates_indefinitely(self) -> bool:  # type: ignore[override]
        return self.pattern.value.lookback is not None

    @property
    def caches_unrotated(self) -> bool:
        """Whether angles follow the length of the text, so that a cache keeps keys as they are before rotation."""
        return self.rotary is not None and follows_length(self.rotary.value)

    def rotation_of_keys(self, context: Context, mask: AttentionMask) -> Any:
        """Return what rotates keys: those of this pass, or all that are seen, which a cache keeps unrotated."""
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
        """Rotate queries and keys, norm them after that if asked, and add the keys and values of the cache."""
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
        """Return scale q k^T plus the bias of positions, and -inf for hidden keys, for weights that are no softmax."""
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
        """Return what queries take of the values that they see, by the kernel that was chosen."""
        if mask.pattern.repeats:
            scores = replace(scores, bias=RepeatedKeys(mask.log_times, scores.bias))
        return self.kernel(query, key, value, mask, scores)

    def new_state(self, batch: int) -> KVCache:
        return KVCache(max_length(self.pattern.value))

    def state_bytes(self, length: int, itemsize: int) -> int:
        kept = max_length(self.pattern.value)
        return (length if kept is None else min(length, kept)) * self.kept_per_token * itemsize

    def prepare(self, context: Context) -> None:
        prepare(self.kernel, context.mask(self.pattern, self.num_heads))
        if self.rotary is not None:
            context.rotation(self.rotary)

    def kernels(self) -> Sequence[str]:
        return [name for name in KERNELS if name != "flex"] if self.has_kernel else []

    def use_kernel(self, name: str) -> None:
        self.kernel = kernel_of(name)


class EqualHeads(AttentionMixer, Generic[S]):
    """Attention whose queries, keys and values have as many heads of one width; its maps but the last."""

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
        """Return what becomes of scores, with a bias."""
        softcap = None if self.spec.softcap == "none" else self.spec.softcap
        return ScoreMods(self.scale, self.spec.dropout if self.training else 0.0, softcap, bias)
