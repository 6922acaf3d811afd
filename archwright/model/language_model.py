"""The interface of models that all other rooms use."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archwright.catalogue.summaries import one_line
from archwright.model.cache import Cache
from archwright.model.layer import Layer
from archwright.model.stack import Stack
from archwright.parts.embeddings import Head
from archwright.parts.linear import Linear
from archwright.parts.masks import MaskPattern
from archwright.spec.errors import UserError
from archwright.spec.run_spec import ActivationCheckpointing

M = TypeVar("M", bound="LanguageModel")


@dataclass(frozen=True)
class Output:
    """Model outputs."""

    logits: Float[Tensor, "batch length vocab"]
    """Unnormalised log-probabilities of the vocabulary's tokens; of a head for replaced tokens, one log-odds."""
    sequence_logits: Float[Tensor, "batch classes"] | None = None
    """Logits of the classes of each row; None without a head for rows."""
    further_logits: Float[Tensor, "further batch length vocab"] | None = None
    """Logits of further predicting streams, each from one token less of the text; None with a cache."""
    replaced_logits: Float[Tensor, "batch length"] | None = None
    """Log-odds that each token was replaced. `logits` are then the generator's."""
    read: Int[Tensor, "batch length"] | None = None
    """Tokens that `replaced_logits` judge."""


class LanguageModel(Stack):
    """A stack of layers with a head; `archwright.build` makes it from a spec.

    `forward` and `hidden` take tokens, the other inputs of a batch by name (`archwright.data.inputs`), and a cache.
    """

    head: Head
    sequence_head: nn.Module | None
    """Classifies rows; None if only tokens are predicted."""
    masks: Mapping[str, MaskPattern]
    lr_scales: Mapping[str, float]
    """Factors of the learning rate other than 1, by role of parameter."""
    forward: Callable[..., Output]
    """Return the logits at each token."""
    hidden: Callable[..., Tensor]
    """Return the input of the head, [batch, length, dim], followed by the inputs of further predicting streams."""

    def sequence_logits(
        self,
        hidden: Float[Tensor, "batch read dim"],
        padding_mask: Bool[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch classes"] | None:
        """Return the logits of `sequence_head` for the first real token of each row; None without that head."""
        if self.sequence_head is None:
            return None
        if padding_mask is None:
            first = hidden[:, 0]
        else:
            at = padding_mask.long().argmax(-1)
            first = hidden[torch.arange(len(hidden), device=hidden.device), at]  # [batch, dim]
        logits: Tensor = self.sequence_head(first)
        return logits

    @property
    def can_cache(self) -> bool:
        """Whether texts can be continued: by all mixers, and without global tokens, which no cache keeps."""
        return all(mixer.can_cache for mixer in self.mixers()) and not self.spec.global_tokens

    @property
    def can_generate_indefinitely(self) -> bool:
        """Whether a text may have any length: the cost of a token is bounded, and positions have no end."""
        bounded = all(mixer.generates_indefinitely for mixer in self.mixers())
        return bounded and not self.spec.position.absolute and not self.spec.global_tokens

    @property
    def switch_lengths(self) -> tuple[int, ...]:
        """Lengths after which a text must be read again, because all angles change (LongRoPE's original_length)."""
        layers = self.spec.layers_by_kind.values()
        return tuple(sorted({n for layer in layers if (n := layer.position.switch_length)}))

    def new_cache(self) -> Cache:
        """Return an empty cache for `forward`.

        Raises:
            UserError: A mask shows later tokens, a mixer has no state, or there are global tokens.
        """
        cache = Cache(self.masks, [layer.mixers() for layer in self.stack], self.switch_lengths)
        if self.spec.global_tokens:
            raise UserError(
                f"global_tokens: found {self.spec.global_tokens}, of which a cache keeps nothing; expected text as a "
                "whole, without a cache"
            )
        return cache

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The stacks of layers, an encoder first."""
        return (self,)

    @property
    def all_layers(self) -> Iterator[Layer]:
        """Yield the layers of all stacks, an encoder's first."""
        return chain(*(stack.stack for stack in self.stacks))

    @property
    def source_maps(self) -> Iterator[Linear]:
        """Yield the maps that read tokens of a source, and none of the decoder's text."""
        yield from ()

    @property
    def shared_maps(self) -> Iterator[Linear]:
        """Yield the maps that read tokens of a source and of the decoder's text."""
        yield from ()

    def use_kernel(self: M, name: str) -> M:
        """Compute attention with a kernel: eager (the reference), sdpa, blockwise or flex."""
        for stack in self.stacks:
            for mixer in stack.mixers():
                mixer.use_kernel(name)
        return self

    def checkpoint_activations(self: M, what: ActivationCheckpointing = "full") -> M:
        """Store fewer activations and recompute the rest, as in `machine.activation_checkpointing`."""
        for stack in self.stacks:
            stack.activation_checkpointing = what
        return self

    def num_parameters(self) -> int:
        """Return the number of parameters; a tied table counts once."""
        return sum(p.numel() for p in self.parameters())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({one_line(self.spec, self.num_parameters())})"
