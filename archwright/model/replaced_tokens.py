"""ELECTRA: a generator proposes tokens, and a detector finds them in the text."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archwright.model.model import Decoder, Output, Stack
from archwright.parts.embeddings import Head
from archwright.spec.model_spec import ModelSpec


class Generator(Stack):
    """A stack of layers that fills in masked tokens, with the detector's embedding.

    Args:
        spec: Spec of the generator, `ModelSpec.generator_model`.
        parts: Arguments of `Stack.assemble`, without positions and norm of the embedding.
    """

    head: Head

    def __init__(self, spec: ModelSpec, *, head: Head, **parts: Any) -> None:
        super().__init__()
        self.assemble(spec, position=None, embedding_norm=nn.Identity(), **parts)
        self.head = head


class ReplacedTokenDetector(Decoder):
    """A decoder with a head that finds replaced tokens, and a generator; `archwright.build` makes it from a spec.

    Clark et al., 2020, ELECTRA, section 2.

    Args:
        generator: Stack that proposes tokens.
        detector: Arguments of `Decoder`.
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
        """Return the generator's logits, the text with drawn tokens, and the log-odds that each token was replaced.

        Args:
            tokens: Text with masks at the places of proposed tokens.
            draws: Uniform random number at each of these places, a negative number elsewhere. Default: no draws.
            token_type_ids: As in `Decoder.forward`.
            layout: Other arguments of `Decoder.forward`, except a cache.

        Raises:
            ValueError: Shapes do not match, or a text exceeds the learned positions.
            UserError: Token types are given, and the embedding has none.
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
        """Return the output of a stack for tokens, by the shared embedding."""
        context = self.new_context(tokens, **layout)
        x = self.add_positions(self.embedding(tokens, token_type_ids), context)
        return stack.run_layers(x, context)

    @property
    def stacks(self) -> tuple[Stack, ...]:
        return (self.generator, self)


@torch.no_grad()
def drawn(
    tokens: Int[Tensor, "batch length"],
    logits: Float[Tensor, "batch length vocab"],
    draws: Float[Tensor, "batch length"],
) -> Int[Tensor, "batch length"]:
    """Return tokens, with a draw from softmax(logits) at each place with u = draws >= 0.

    The draw is the first token with a cumulative probability above u.
    """
    places = draws >= 0
    p = (
        logits[places].to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
    )  # [n, vocab]
    up_to = p.cumsum(-1)
    # Rounding makes the last sum differ from 1.
    aims = draws[places, None].to(p.dtype) * up_to[:, -1:]
    samples = torch.searchsorted(up_to, aims, right=True).clamp(max=p.shape[-1] - 1)
    return tokens.masked_scatter(places, samples.squeeze(-1))
