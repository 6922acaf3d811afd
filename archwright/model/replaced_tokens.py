"""Models of a generator, which proposes tokens, and of layers that find them among those of a text."""

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
    """A stack of layers that fills in masked tokens, behind the embedding of those that find its tokens.

    Args:
        spec: of the generator as a model of its own, `ModelSpec.generator_model`.
        parts: the arguments of `Stack.assemble`, without those of the embedding.
    """

    head: Head

    def __init__(self, spec: ModelSpec, *, head: Head, **parts: Any) -> None:
        super().__init__()
        self.assemble(spec, position=None, embedding_norm=nn.Identity(), **parts)
        self.head = head


class ReplacedTokenDetector(Decoder):
    """Layers whose head finds the tokens of a generator among those of a text (Clark et al., 2020, ELECTRA, section
    2); `archwright.build` makes it from a spec with a generator.

    Args:
        generator: the stack that proposes tokens.
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
        """Return the generator's logits of each token, what is drawn from them, and the log-odds that a token of the
        text with these in their places was replaced.

        Args:
            tokens: the text, masked where the generator proposes tokens.
            draws: a uniform number at each of these places, and a negative one at all others, whose tokens stay; by
                default nothing is drawn.
            token_type_ids: as of `Decoder.forward`.
            layout: what else `Decoder.forward` takes, but a cache.

        Raises:
            ValueError: shapes that do not fit, or a text longer than learned positions.
            UserError: token types, where the embedding has none.
        """
        hidden = self._read(self.generator, tokens, token_type_ids, **layout)
        logits = self.generator.head(hidden)
        read = tokens if draws is None else drawn(tokens, logits.detach(), draws)
        found = self.head(self._read(self, read, token_type_ids, **layout))
        return Output(logits, replaced_logits=found.squeeze(-1), read=read)

    def _read(
        self,
        stack: Stack,
        tokens: Int[Tensor, "batch length"],
        token_type_ids: Int[Tensor, "batch length"] | None,
        **layout: Any,
    ) -> Float[Tensor, "batch length output_dim"]:
        """Return what the layers of a stack make of tokens behind the embedding that both have."""
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
    """Return tokens with one drawn from softmax(logits) at each place whose number u is not negative: the first token
    that the tokens up to it have together a probability above u."""
    places = draws >= 0
    p = (
        logits[places].to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
    )  # [n, vocab]
    up_to = p.cumsum(-1)
    # Rounded sums end near 1, not at it.
    aims = draws[places, None].to(p.dtype) * up_to[:, -1:]
    found = torch.searchsorted(up_to, aims, right=True).clamp(max=p.shape[-1] - 1)
    return tokens.masked_scatter(places, found.squeeze(-1))
