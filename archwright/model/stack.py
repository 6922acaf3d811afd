"""A stack of layers, with what stands before the first and behind the last."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from archwright.model.cache import Cache
from archwright.model.layer import Layer
from archwright.model.recomputation import recomputed
from archwright.model.reversible import read_reversibly
from archwright.parts.context import Context
from archwright.parts.global_tokens import GlobalTokens
from archwright.parts.linear import Linear
from archwright.parts.mixers import Mixer
from archwright.parts.predicting_streams import PredictingStreams
from archwright.parts.token_layout import rows_at
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import ActivationCheckpointing


class Stack(nn.Module):
    """Layers that read embedded tokens: positions that are added, a norm, the layers, and a last norm."""

    spec: ModelSpec
    embedding: nn.Module | None
    position: nn.Module | None
    embedding_norm: nn.Module
    project_in: Linear | None
    global_tokens: GlobalTokens | None
    predicting_streams: PredictingStreams | None
    layers: nn.ModuleList
    """Those with parameters of their own: fewer than there are to go through where some are shared."""
    norm: nn.Module
    activation_checkpointing: ActivationCheckpointing = "none"
    """What layers keep for the backward pass, which computes the rest again."""
    order: tuple[int, ...] | None = None
    """Numbers of the layers in the order of a pass; None: that of the spec."""
    keeps_all: bool = False
    """Whether reversible layers are computed as others, so that a trace sees what one of them needs."""

    def assemble(
        self,
        spec: ModelSpec,
        position: nn.Module | None,
        embedding_norm: nn.Module,
        project_in: Linear | None,
        global_tokens: GlobalTokens | None,
        rotaries: Mapping[str, nn.Module],
        relatives: Mapping[str, nn.Module],
        layers: Iterable[Layer],
        norm: nn.Module,
        predicting_streams: PredictingStreams | None = None,
    ) -> None:
        """Take the parts of a stack, in the order in which they are registered."""
        self.spec, self.position, self.embedding_norm = spec, position, embedding_norm
        self.project_in, self.global_tokens = project_in, global_tokens
        self.rotaries, self.relatives = nn.ModuleDict(rotaries), nn.ModuleDict(relatives)
        self.layers, self.norm = nn.ModuleList(layers), norm
        self.predicting_streams = predicting_streams

    def read(
        self,
        x: Float[Tensor, "batch length width"],
        context: Context,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch read output_dim"]:
        """Return what the layers make of embedded tokens, after the last norm; with predicting streams, of their
        vectors, stream by stream, and behind a cache of the first stream's alone."""
        if self.predicting_streams is not None:
            number = None if cache is None else 1
            x, context = self.predicting_streams.beside(x, context, number)
        return self.through_layers(self.summed(x, context), context, cache)

    def summed(
        self, x: Float[Tensor, "batch length width"], context: Context
    ) -> Float[Tensor, "batch length width"]:
        """Return embedded tokens with positions that are added, after the norm and the dropout of the sum."""
        if self.position is not None:
            x = x + self.position(context.layout).to(x.dtype)
        return F.dropout(self.embedding_norm(x), self.spec.embedding.dropout, self.training)

    def through_layers(
        self,
        x: Float[Tensor, "batch length width"],
        context: Context,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch read output_dim"]:
        """Run the layers on the result of `summed`, and the last norm."""
        if self.project_in is not None:
            x = self.project_in(x)
        columns = None
        if self.global_tokens is not None:
            x, context, columns = self.global_tokens.before(x, context)
        context.embedding = x
        keeps_all = self.keeps_all or cache is not None or not torch.is_grad_enabled()
        if self.is_reversible:
            x = torch.cat((x, x), -1)
        if self.is_reversible and not keeps_all:
            shared = chain(self.rotaries.parameters(), self.relatives.parameters())
            x = read_reversibly(self.stack, x, context, shared)
        else:
            x = self.through(self.stack, x, context, cache)
        if columns is not None:
            x = rows_at(x, columns)
        if context.layout.text is not None:
            x = x[:, context.layout.text.length :]
        if x.shape[-1] != self.spec.output_dim:
            x = x.unflatten(-1, (-1, self.spec.output_dim)).mean(-2)  # [batch, length, dim]
        normed: Tensor = self.norm(x)
        return normed

    def through(
        self,
        layers: Iterable[Layer],
        x: Float[Tensor, "batch length dim"],
        context: Context,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return the stream behind some of the layers, one after the other."""
        keeps_all = cache is not None or not torch.is_grad_enabled()
        for i, layer in enumerate(layers):
            layer.prepare(context)
            if keeps_all:
                x = layer(x, context, cache and cache.states(i))
            else:
                x = recomputed(layer, x, context, self.activation_checkpointing)
        return x

    @property
    def is_reversible(self) -> bool:
        """Whether two streams run through the layers, which are computed again in the backward pass."""
        return self.spec.residual.num_streams == 2

    @property
    def stack(self) -> Iterator[Layer]:
        """Yield the layers in the order in which they are gone through; one that is shared comes again."""
        return (cast(Layer, self.layers[i]) for i in self.order or self.spec.layer_indices)

    def mixers(self) -> Iterator[Mixer]:
        """Yield all branches in which tokens exchange information, layer by layer."""
        for layer in self.stack:
            yield from layer.mixers().values()
