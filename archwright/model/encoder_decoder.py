"""Models of two stacks: an encoder reads the source, a decoder goes on with the target and looks at the source."""

from collections.abc import Callable, Iterator
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archwright.model.cache import Cache
from archwright.model.decoder import Decoder
from archwright.model.language_model import Output
from archwright.model.stack import Stack
from archwright.parts.context import Context, Memory
from archwright.parts.embeddings import TokenEmbedding
from archwright.parts.linear import Linear
from archwright.parts.token_layout import token_layout
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec


class Encoder(Stack):
    """A stack of layers that reads the source.

    Args:
        spec: of the encoder as a model of its own, `ModelSpec.encoder_model`.
        embedding: a table of its own; None where it reads by the decoder's.
        parts: the arguments of `Stack.assemble`.
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
        """Return what the layers make of the source.

        Args:
            shared: the decoder's table, which counts where there is none of its own.
        """
        layout = token_layout(tokens, position_ids, segment_ids, padding_mask)
        context = Context(layout, len(tokens), tokens=tokens)
        return Memory(self.read((self.embedding or shared)(tokens), context), layout)


class EncoderDecoder(Decoder):
    """A decoder whose layers look at what an encoder made of another text (Vaswani et al., 2017, section 3.1);
    `archwright.build` makes it from a spec with an encoder.

    Args:
        encoder: the stack that reads the source.
        decoder: the arguments of `Decoder`.
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
            tokens: the source; None where a cache has read it.
            decoder_tokens: what the decoder reads, of which each token sees those before it and the whole source.
            position_ids: where the tokens of the source stand; by default 0, 1, 2, ... in each document.
            segment_ids: tokens of the source with different ids do not see each other.
            decoder_segment_ids: the same of the decoder's, which see no token of the source with another id either.
            padding_mask: True where a token of the source is real; padding is seen by no token.
            decoder_padding_mask: the same of the decoder's.
            cache: what was read before, of the source and of the decoder's tokens.

        Raises:
            ValueError: shapes that do not fit, or a text longer than learned positions.
            UserError: no tokens for the decoder, or no source where none was read.
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
        assert decoder_tokens is not None  # or `hidden` would have refused
        return self.output(hidden, decoder_tokens.shape[1])

    def hidden(
        self,
        tokens: Int[Tensor, "batch source_length"] | None,
        decoder_tokens: Int[Tensor, "batch length"] | None = None,
        *,
        decoder_segment_ids: Int[Tensor, "batch length"] | None = None,
        decoder_padding_mask: Bool[Tensor, "batch length"] | None = None,
        cache: Cache | None = None,
        **layout: Tensor | None,
    ) -> Float[Tensor, "batch read dim"]:
        """Return the vectors the head reads, as `Decoder.hidden`; arguments as of `forward`."""
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
        return self.read(self.embedding(decoder_tokens), context, cache)

    def encode(
        self, tokens: Int[Tensor, "batch source_length"] | None, **layout: Tensor | None
    ) -> Memory:
        """Return what the encoder makes of a source; arguments as those of `forward`.

        Raises:
            UserError: there is none.
        """
        if tokens is None:
            raise UserError("tokens: found no source, and the cache has read none; expected one")
        memory: Memory = self.encoder(tokens, self.embedding, **layout)
        return memory

    @property
    def source_maps(self) -> Iterator[Linear]:
        """Yield the maps that read the source: the encoder, and keys and values of its output."""
        yield from (module for module in self.encoder.modules() if isinstance(module, Linear))
        for layer in self.stack:
            for name in layer.branches:
                yield from layer.branch(name).source_maps

    @property
    def shared_maps(self) -> Iterator[Linear]:
        """Yield the maps of an embedding that both stacks read."""
        if self.encoder.embedding is None:
            yield from (m for m in self.embedding.modules() if isinstance(m, Linear))

    @property
    def stacks(self) -> tuple[Stack, ...]:
        return (self.encoder, self)
