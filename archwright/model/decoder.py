"""The decoder: tokens in, logits out."""

from collections.abc import Callable, Mapping
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
        lr_scales: Factors of the learning rate other than 1, by role of parameter.
        parts: Arguments of `Stack.assemble`.
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
            position_ids: Positions [batch, length] or [length]. Default: 0, 1, 2, ... over the real tokens of each
                document.
            segment_ids: Document of each token. Tokens attend only within their document.
            padding_mask: True for real tokens. No token attends to padding, on either side of a text.
            prefix_lengths: Length of each row's bidirectional prefix, for prefix masks.
            token_type_ids: Row of the embedding's token types that is added to each token. Default: the first.
            cache: Cache of the text so far, from `new_cache`. The tokens continue it and are added.

        Raises:
            ValueError: Shapes do not match, a text exceeds the learned positions, or it grows beyond one of
                `switch_lengths` with a cache.
            UserError: Token types are given, and the embedding has none.
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
        token_type_ids: Int[Tensor, "batch length"] | None = None,
        cache: Cache | None = None,
        **layout: Any,
    ) -> Float[Tensor, "batch read output_dim"]:
        """Return the input of the head for each token.

        Predicting streams without a cache add the inputs of all streams, the first stream's first. Arguments: as in
        `forward`.
        """
        new_context: Callable[..., Context] = cache.context if cache else self.new_context
        context = new_context(tokens, **layout)
        return self.read(self.embedding(tokens, token_type_ids), context, cache)

    def new_context(self, tokens: Int[Tensor, "batch length"], **layout: Any) -> Context:
        """Return the context of a pass without a cache. Arguments: as in `forward`."""
        return Context(token_layout(tokens, **layout), len(tokens), tokens=tokens)

    def output(
        self,
        hidden: Float[Tensor, "batch read output_dim"],
        length: int,
        sequence_logits: Float[Tensor, "batch classes"] | None = None,
    ) -> Output:
        """Return the logits of the result of `hidden` for `length` tokens."""
        logits = self.head(hidden)
        if hidden.shape[1] == length:
            return Output(logits, sequence_logits)
        # [streams, batch, length, vocab]
        streams = logits.unflatten(1, (-1, length)).movedim(1, 0)
        return Output(streams[0], sequence_logits, streams[1:])
