"""Encoder-decoders: the encoder reads the source, the decoder continues the target and attends to the source."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archwright.model.cache import Cache
from archwright.model.model import Decoder, Output, Stack
from archwright.parts.context import Context, Memory
from archwright.parts.embeddings import TokenEmbedding
from archwright.parts.token_layout import token_layout
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec


class Encoder(Stack):
    """A stack of layers that reads the source.

    Args:
        spec: Spec of the encoder, `ModelSpec.encoder_model`.
        embedding: Table of the encoder; None if it shares the decoder's.
        parts: Arguments of `Stack.assemble`.
    """

    def __init__(self, spec: ModelSpec, *, embedding: TokenEmbedding | None, **parts: Any) -> None:
        super().__init__()
        self.embedding, self.head = embedding, None
        self.assemble(spec, **parts)

    def forward(
        self,
        tokens: Int[Tensor, "batch source_length"],
        shared: nn.Module,
        *,
        position_ids: Int[Tensor, "*rows source_length"] | None = None,
        segment_ids: Int[Tensor, "batch source_length"] | None = None,
        padding_mask: Bool[Tensor, "batch source_length"] | None = None,
    ) -> Memory:
        """Return the output for a source, with its layout.

        Args:
            shared: Table of the decoder, used if the encoder has none.
        """
        layout = token_layout(tokens, position_ids, segment_ids, padding_mask)
        context = Context(layout, len(tokens), tokens=tokens)
        x = self.add_positions((self.embedding or shared)(tokens), context)
        return Memory(self.run_layers(x, context), layout)


class EncoderDecoder(Decoder):
    """A decoder with layers that attend to the output of an encoder; `archwright.build` makes it from a spec.

    Vaswani et al., 2017, section 3.1.

    Args:
        encoder: Stack that reads the source.
        decoder: Arguments of `Decoder`.
    """

    def __init__(self, spec: ModelSpec, *, encoder: Encoder, **decoder: Any) -> None:
        super().__init__(spec, **decoder)
        self.encoder = encoder

    def forward(  # type: ignore[override]
        self,
        tokens: Int[Tensor, "batch source_length"] | None,
        decoder_tokens: Int[Tensor, "batch length"] | None = None,
        *,
        position_ids: Int[Tensor, "*rows source_length"] | None = None,
        segment_ids: Int[Tensor, "batch source_length"] | None = None,
        padding_mask: Bool[Tensor, "batch source_length"] | None = None,
        decoder_segment_ids: Int[Tensor, "batch length"] | None = None,
        decoder_padding_mask: Bool[Tensor, "batch length"] | None = None,
        cache: Cache | None = None,
    ) -> Output:
        """Return logits for the token after each token of the decoder.

        Args:
            tokens: Source; None if the cache has read it.
            decoder_tokens: Target. Each token attends to earlier tokens and to all of the source.
            position_ids: Positions in the source. Default: 0, 1, 2, ... in each document.
            segment_ids: Document of each source token. Tokens attend only within their document.
            decoder_segment_ids: Document of each target token, which attends to the source of the same document.
            padding_mask: True for real tokens of the source.
            decoder_padding_mask: True for real tokens of the target.
            cache: Cache of source and target, from `new_cache`.

        Raises:
            ValueError: Shapes do not match, or a text exceeds the learned positions.
            UserError: There are no target tokens, or there is no source.
        """
        hidden = self.hidden(
            tokens,
            decoder_tokens,
            position_ids=position_ids,
            segment_ids=segment_ids,
            padding_mask=padding_mask,
            decoder_segment_ids=decoder_segment_ids,
            decoder_padding_mask=decoder_padding_mask,
            cache=cache,
        )
        return Output(self.head(hidden))

    def hidden(
        self,
        tokens: Int[Tensor, "batch source_length"] | None,
        decoder_tokens: Int[Tensor, "batch length"] | None = None,
        *,
        decoder_segment_ids: Int[Tensor, "batch length"] | None = None,
        decoder_padding_mask: Bool[Tensor, "batch length"] | None = None,
        cache: Cache | None = None,
        **layout: Tensor | None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return the input of the head, as `Decoder.hidden`. Arguments: as in `forward`."""
        if decoder_tokens is None:
            raise UserError(
                "decoder_tokens: found none; a model with an encoder reads a source and the tokens of its decoder"
            )
        memory = cache.memory if cache else None
        if memory is None:
            memory = self.encode(tokens, **layout)
        new_context: Callable[..., Context] = self.new_context
        if cache:
            cache.memory, new_context = memory, cache.context
        context = new_context(
            decoder_tokens, segment_ids=decoder_segment_ids, padding_mask=decoder_padding_mask
        )
        context.memory = memory
        x = self.add_positions(self.embedding(decoder_tokens), context)
        return self.run_layers(x, context, cache)

    def encode(
        self, tokens: Int[Tensor, "batch source_length"] | None, **layout: Tensor | None
    ) -> Memory:
        """Return the output of the encoder. Arguments: as in `forward`.

        Raises:
            UserError: There is no source.
        """
        if tokens is None:
            raise UserError("tokens: found no source, and the cache has read none; expected one")
        memory: Memory = self.encoder(tokens, self.embedding, **layout)
        return memory

    @property
    def stacks(self) -> tuple[Stack, ...]:
        return (self.encoder, self)
