"""One forward pass: token layout, masks, rotations and cache slots for all layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from archwright.parts.masks import (
    WHOLE,
    AttentionMask,
    MaskPattern,
    given_mask,
    max_length,
    sees_all_kept,
)
from archwright.parts.positions import rotation
from archwright.parts.sharing import Shared
from archwright.parts.states import KVCache, Past, SlotTable
from archwright.parts.token_layout import TokenLayout
from archwright.spec.errors import UserError

MEMORY = "memory"
"""Name of the mask between the tokens of a pass and the source."""


@dataclass(frozen=True)
class Memory:
    """Output of an encoder, which cross-attention reads."""

    output: Float[Tensor, "batch source_length memory_dim"]
    """After the encoder's last norm."""
    layout: TokenLayout
    """Layout of the source's tokens."""

    def rows(self, rows: Int[Tensor, " new_batch"]) -> "Memory":
        """Return some sources in a new order."""
        return Memory(self.output[rows], self.layout.rows(rows, len(self.output)))


class Context:
    """Layout of a batch, and masks and rotations that all layers share.

    Args:
        layout: positions, documents and padding of the tokens.
        batch: number of sequences.
        attention_mask: explicit mask instead of the masks of the spec, [batch or 1, heads or 1, queries, keys] or
            without heads; True for visible keys.
        past: cached tokens of the same sequences; None without a cache.
        tokens: ids of the tokens, [batch, length]; None outside a model.

    Attributes:
        head: the model's head, for auxiliary losses; None outside a model.
        memory: output of the encoder.
        decisions: data-dependent decisions by layer and mixer, if layers are recomputed; otherwise None.
        layer_number: index of the recomputed layer, from 0.
        replay: random numbers of recomputed layers, if they draw any.
    """

    head: Callable[[Tensor], Tensor] | None = None
    decisions: dict[tuple[int, Any], Tensor] | None = None
    layer_number: int = 0
    replay: Any = None
    _memory: "Memory | None" = None

    def __init__(
        self,
        layout: TokenLayout,
        batch: int,
        *,
        attention_mask: Tensor | None = None,
        past: Past | None = None,
        tokens: Tensor | None = None,
    ) -> None:
        self.layout, self.batch, self._tokens = layout, batch, tokens
        self._attention_mask, self._past = attention_mask, past
        self._masks: dict[str, AttentionMask] = {}
        self._rotations: dict[str, Any] = {}
        self._slots: dict[int | None, SlotTable] = {}
        self._provided: dict[str, Tensor] = {}

    @classmethod
    def alone(cls, x: Tensor, attention_mask: Tensor | None = None) -> "Context":
        """Return the context of vectors [batch, length, dim] without documents, from position 0."""
        return cls(TokenLayout(x.shape[1], x.device), x.shape[0], attention_mask=attention_mask)

    def placed(self, layout: TokenLayout) -> "Context":
        """Return the context of another layout, without token ids."""
        context = Context(layout, self.batch, past=self._past)
        context._memory = self._memory
        return context

    @property
    def tokens(self) -> Tensor:
        """Ids of the tokens, [batch, length].

        Raises:
            UserError: the layer runs outside a model.
        """
        if self._tokens is None:
            raise UserError(
                "token ids are read by this layer, and vectors alone were given; call the model"
            )
        return self._tokens

    @property
    def memory(self) -> "Memory":
        """Output of the encoder.

        Raises:
            UserError: the layer runs outside a model with an encoder.
        """
        if self._memory is None:
            raise UserError(
                "the encoder's output is read by this layer, and vectors alone were given; call the model"
            )
        return self._memory

    @memory.setter
    def memory(self, memory: "Memory") -> None:
        self._memory = memory

    @property
    def has_memory(self) -> bool:
        """True if there is an encoder's output."""
        return self._memory is not None

    def memory_mask(self) -> AttentionMask:
        """Return the mask of the source; packed tokens see the source of the same segment."""
        if MEMORY not in self._masks:
            source = self.memory.layout
            plain = (
                source.plain
                and self.layout.segment_ids is None
                and self.layout.padding_mask is None
            )
            self._masks[MEMORY] = AttentionMask(WHOLE, self.layout, source, is_full=plain)
        return self._masks[MEMORY]

    @property
    def given(self) -> set[str]:
        """Names of the inputs other than tokens, which mixers must not ignore."""
        present = {
            "position_ids": self.layout.position_ids is not self.layout.index,
            "segment_ids": self.layout.segment_ids is not None,
            "padding_mask": self.layout.padding_mask is not None,
            "attention_mask": self._attention_mask is not None,
        }
        return {name for name, is_present in present.items() if is_present}

    def mask(self, pattern: Shared[MaskPattern], num_heads: int = 1) -> AttentionMask:
        """Return the mask of a pattern with the documents and the padding of this pass.

        Raises:
            UserError: `attention_mask` has a wrong shape or dtype.
        """
        if pattern.name not in self._masks:
            self._masks[pattern.name] = self._new_mask(pattern.value, num_heads)
        return self._masks[pattern.name]

    def rotation(self, rotary: Shared[Any]) -> Any:
        """Return the rotation angles of this pass."""
        if rotary.name not in self._rotations:
            self._rotations[rotary.name] = rotation(rotary.value, self.layout)
        return self._rotations[rotary.name]

    def provide(self, name: str, value: Tensor) -> None:
        """Keep a value of a layer for later layers of this pass.

        The first value of a name stays: a recomputed layer provides it again, without the graph of the pass.
        """
        self._provided.setdefault(name, value)

    def read(self, name: str) -> Tensor:
        """Return a value that an earlier layer of this pass provided.

        Raises:
            UserError: No layer has provided it, as in a layer on its own.
        """
        if name not in self._provided:
            raise UserError(
                f"{name}: is read by this layer, and no layer before it has provided it; call the model"
            )
        return self._provided[name]

    def kept(self, mixer: Any, decide: Callable[[], Tensor]) -> Tensor:
        """Return a decision of a mixer; recomputed layers reuse the first decision."""
        if self.decisions is None:
            return decide()
        key = (self.layer_number, mixer)
        if key not in self.decisions:
            self.decisions[key] = decide()
        return self.decisions[key]

    def all_keys(self, state: KVCache | None, *new: Tensor) -> Sequence[Tensor]:
        """Return cached and new keys and values, [batch, length, ...]."""
        return new if state is None else state.update(self.slots(state.max_length), *new)

    def slots(self, max_length: int | None) -> SlotTable:
        """Return the cache slots of this pass for a cache of `max_length` tokens."""
        assert self._past is not None, "a pass without a cache has no slots"
        if max_length not in self._slots:
            self._slots[max_length] = self._past.slots(max_length, self.layout, self.batch)
        return self._slots[max_length]

    def _new_mask(self, pattern: MaskPattern, num_heads: int) -> AttentionMask:
        if self._attention_mask is not None:
            length = self.layout.length
            given = given_mask(self._attention_mask, self.batch, num_heads, length, length)
            return AttentionMask(WHOLE, self.layout, given=given)
        if self._past is None:
            return AttentionMask(pattern, self.layout)
        # If all sequences are equally long, one new token sees all cached keys of a mask without gaps.
        alone = self.layout.length == 1 and self.layout.index is None
        seen = self.slots(max_length(pattern)).seen
        return AttentionMask(
            pattern,
            self.layout,
            seen,
            is_full=alone and sees_all_kept(pattern),
        )
