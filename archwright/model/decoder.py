"""The decoder: tokens in, logits out."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archwright.catalogue.summaries import one_line
from archwright.model.cache import Cache
from archwright.model.language_model import LanguageModel, Output
from archwright.model.layer import Layer
from archwright.model.stack import Stack
from archwright.parts.context import Context
from archwright.parts.embeddings import Head, TokenEmbedding
from archwright.parts.masks import MaskPattern
from archwright.parts.token_layout import token_layout
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import ActivationCheckpointing


class Decoder(Stack, LanguageModel):
    """A stack of layers between an embedding and a head; `archwright.build` makes it from a spec.

    Args:
        lr_scales: what the learning rate is multiplied by, for roles of parameters that have another than 1.
        parts: the arguments of `Stack.assemble`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        embedding: TokenEmbedding,
        head: Head,
        sequence_head: nn.Module | None,
        masks: Mapping[str, MaskPattern],
        lr_scales: Mapping[str, float],
        **parts: Any,
    ) -> None:
        super().__init__()
        self.masks, self.lr_scales = dict(masks), dict(lr_scales)
        self.embedding: TokenEmbedding = embedding
        self.assemble(spec, **parts)
        self.head, self.sequence_head = head, sequence_head

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        position_ids: Int[Tensor, "*rows length"] | None = None,
        segment_ids: Int[Tensor, "batch length"] | None = None,
        padding_mask: Bool[Tensor, "batch length"] | None = None,
        prefix_lengths: Int[Tensor, " batch"] | None = None,
        token_type_ids: Int[Tensor, "batch length"] | None = None,
        cache: Cache | None = None,
    ) -> Output:
        """Return logits for the token after each token.

        Args:
            position_ids: where the tokens stand, [batch, length] or [length]; by default 0, 1, 2, ...
                among the real tokens of each document.
            segment_ids: tokens with different ids do not see each other.
            padding_mask: True where a token is real; padding is seen by no token, on whichever side
                it stands.
            prefix_lengths: how many tokens of each row see each other whole, for prefix masks.
            token_type_ids: which row of the embedding's token types is added to each token; by default the first.
            cache: what was read before, from `new_cache`; the tokens go on from there and are added to it.

        Raises:
            ValueError: shapes that do not fit, a text longer than learned positions, or one that grows
                beyond one of `switch_lengths` behind a cache.
            UserError: token types, where the embedding has none.
        """
        hidden = self.hidden(
            tokens,
            position_ids=position_ids,
            segment_ids=segment_ids,
            padding_mask=padding_mask,
            prefix_lengths=prefix_lengths,
            token_type_ids=token_type_ids,
            cache=cache,
        )
        return self.output(hidden, tokens.shape[1], self.sequence_logits(hidden, padding_mask))

    def hidden(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        position_ids: Int[Tensor, "*rows length"] | None = None,
        segment_ids: Int[Tensor, "batch length"] | None = None,
        padding_mask: Bool[Tensor, "batch length"] | None = None,
        prefix_lengths: Int[Tensor, " batch"] | None = None,
        token_type_ids: Int[Tensor, "batch length"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch read output_dim"]:
        """Return the vectors the head reads, after the last norm, as many as tokens; of predicting streams without a
        cache those of all, the first stream's first. Arguments as those of `forward`."""
        given = (tokens, position_ids, segment_ids, padding_mask, prefix_lengths)
        context = cache.context(*given) if cache else self.new_context(*given)
        return self.read(self.embedding(tokens, token_type_ids), context, cache)

    def new_context(
        self,
        tokens: Int[Tensor, "batch length"],
        position_ids: Int[Tensor, "*rows length"] | None,
        segment_ids: Int[Tensor, "batch length"] | None,
        padding_mask: Bool[Tensor, "batch length"] | None,
        prefix_lengths: Int[Tensor, " batch"] | None,
    ) -> Context:
        """Return the context of a pass without a cache. Arguments as those of `forward`."""
        layout = token_layout(tokens, position_ids, segment_ids, padding_mask, prefix_lengths)
        return Context(layout, len(tokens), tokens=tokens)

    def output(
        self,
        hidden: Float[Tensor, "batch read output_dim"],
        length: int,
        sequence_logits: Float[Tensor, "batch classes"] | None = None,
    ) -> Output:
        """Return the logits of what `hidden` gives for so many tokens."""
        logits = self.head(hidden)
        if hidden.shape[1] == length:
            return Output(logits, sequence_logits)
        # [streams, batch, length, vocab]
        streams = logits.unflatten(1, (-1, length)).movedim(1, 0)
        return Output(streams[0], sequence_logits, streams[1:])

    @property
    def can_cache(self) -> bool:
        """Whether every mixer keeps what it has read; one from outside may not, and nothing keeps global tokens."""
        return all(mixer.can_cache for mixer in self.mixers()) and not self.spec.global_tokens

    @property
    def can_generate_indefinitely(self) -> bool:
        """Whether a text may go on for ever: the next token never costs more, and no position ends."""
        bounded = all(mixer.generates_indefinitely for mixer in self.mixers())
        return bounded and not self.spec.position.absolute and not self.spec.global_tokens

    @property
    def switch_lengths(self) -> tuple[int, ...]:
        """Lengths of a text beyond which what was read of it must be read again: all angles are then others
        (LongRoPE's original_length)."""
        layers = self.spec.layers_by_kind.values()
        return tuple(sorted({n for layer in layers if (n := layer.position.switch_length)}))

    def new_cache(self) -> Cache:
        """Return an empty cache, to be given to `forward`.

        Raises:
            UserError: a mask that lets tokens see what follows, a mixer that keeps no state, or global tokens.
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
        return chain(*(stack.stack for stack in self.stacks))

    def use_kernel(self, name: str) -> "Decoder":
        for stack in self.stacks:
            for mixer in stack.mixers():
                mixer.use_kernel(name)
        return self

    def checkpoint_activations(self, what: ActivationCheckpointing = "full") -> "Decoder":
        for stack in self.stacks:
            stack.activation_checkpointing = what
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({one_line(self.spec, self.num_parameters())})"
