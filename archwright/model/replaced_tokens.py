"""Replaced token detection: a generator that proposes tokens, and a detector of replaced tokens."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archwright.model.decoder import Decoder
from archwright.model.language_model import Output
from archwright.model.stack import Stack
from archwright.parts.context import Context
from archwright.parts.embeddings import Head
from archwright.parts.token_layout import token_layout
from archwright.spec.model_spec import ModelSpec


class Generator(Stack):
    """Layers that predict masked tokens, with the embedding of the detector.

    Args:
        spec: spec of the generator, `ModelSpec.generator_model`.
        parts: the arguments of `Stack.assemble`, without position and embedding_norm.
    """

    def __init__(self, spec: ModelSpec, *, head: Head, **parts: Any) -> None:
        super().__init__()
        self.assemble(spec, position=None, embedding_norm=nn.Identity(), **parts)
        self.head = head


class ReplacedTokenDetector(Decoder):
    """Detector of tokens replaced by a generator (Clark et al., 2020, ELECTRA, section 2).

    Args:
        generator: stack that proposes tokens.
        detector: the arguments of `Decoder`.
    """

    def __init__(self, spec: ModelSpec, *, generator: Generator, **detector: Any) -> None:
        super().__init__(spec, **detector)
        self.generator = generator

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        draws: Float[Tensor, "batch length"] | None = None,
        token_type_ids: Int[Tensor, "batch length"] | None = None,
        **layout: Any,
    ) -> Output:
        """Replace masked tokens by tokens of the generator, and detect the replaced tokens.

        Args:
            tokens: input ids with mask tokens at positions to predict.
            draws: uniform random numbers at masked positions and negative numbers elsewhere. Default: no replacement.
            token_type_ids: as in `Decoder.forward`.
            layout: other arguments of `Decoder.forward`, without a cache.

        Returns:
            Logits of the generator, log-odds that each token was replaced, and the tokens that the detector read.

        Raises:
            ValueError: invalid shapes, or more tokens than learned positions.
            UserError: token types without an embedding for them.
        """
        hidden = self._read(self.generator, tokens, token_type_ids, **layout)
        logits = self.generator.head(hidden)
        read = tokens if draws is None else drawn(tokens, logits.detach(), draws)
        log_odds = self.head(self._read(self, read, token_type_ids, **layout))
        return Output(logits, replaced_logits=log_odds.squeeze(-1), read=read)

    def _read(
        self,
        stack: Stack,
        tokens: Int[Tensor, "batch length"],
        token_type_ids: Int[Tensor, "batch length"] | None,
        **layout: Any,
    ) -> Float[Tensor, "batch length output_dim"]:
        """Embed tokens with the shared embedding and run the layers of a stack."""
        context = Context(token_layout(tokens, **layout), len(tokens), tokens=tokens)
        x = self.summed(self.embedding(tokens, token_type_ids), context)
        return stack.through_layers(x, context)

    @property
    def stacks(self) -> tuple[Stack, ...]:
        return (self.generator, self)


@torch.no_grad()
def drawn(
    tokens: Int[Tensor, "batch length"],
    logits: Float[Tensor, "batch length vocab"],
    draws: Float[Tensor, "batch length"],
) -> Int[Tensor, "batch length"]:
    """Sample tokens at draws u >= 0: the first id with cumulative softmax(logits) above u."""
    places = draws >= 0
    p = (
        logits[places].to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
    )  # [n, vocab]
    up_to = p.cumsum(-1)
    # Rounding makes the last sum differ from 1.
    aims = draws[places, None].to(p.dtype) * up_to[:, -1:]
    samples = torch.searchsorted(up_to, aims, right=True).clamp(max=p.shape[-1] - 1)
    return tokens.masked_scatter(places, samples.squeeze(-1))
