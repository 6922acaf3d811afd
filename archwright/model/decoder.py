"""The decoder: tokens in, logits out."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archwright.model.cache import Cache
from archwright.model.language_model import LanguageModel, Output
from archwright.parts.context import Context
from archwright.parts.embeddings import Head, TokenEmbedding
from archwright.parts.masks import MaskPattern
from archwright.parts.token_layout import token_layout
from archwright.spec.model_spec import ModelSpec


class Decoder(LanguageModel):
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
