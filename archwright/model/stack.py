"""A stack of layers: from embedded tokens to the input of the head."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from archwright.model.across_layers import check
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
    """Positions that are added to the embedding, a norm, the layers, and the last norm."""

    spec: ModelSpec
    embedding: nn.Module | None
    head: nn.Module | None
    layers: nn.ModuleList
    """Layers in order; shared layers occur once."""
    activation_checkpointing: ActivationCheckpointing = "none"
    """Activations that layers store for the backward pass; the rest is recomputed."""
    order: tuple[int, ...] | None = None
    """Numbers of the layers in the order of a pass; None: that of the spec."""
    keeps_all: bool = False
    """True if reversible layers store activations as other layers do, so that a trace counts them."""

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
        """Register the parts of a stack, in this order.

        Raises:
            UserError: A layer reads a value or a state that no earlier layer has.
        """
        self.spec, self.position, self.embedding_norm = spec, position, embedding_norm
        self.project_in, self.global_tokens = project_in, global_tokens
        self.rotaries, self.relatives = nn.ModuleDict(rotaries), nn.ModuleDict(relatives)
        self.layers, self.norm = nn.ModuleList(layers), norm
        self.predicting_streams = predicting_streams
        check(self.stack, is_reversible=spec.residual.is_reversible)

    def read(
        self,
        x: Float[Tensor, "batch length width"],
        context: Context,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch read output_dim"]:
        """Return the input of the head for embedded tokens.

        With predicting streams, the inputs of all streams follow each other; with a cache, only the first one's.
        """
        if self.predicting_streams is not None:
            number = None if cache is None else 1
            x, context = self.predicting_streams.beside(x, context, number)
        return self.through_layers(self.summed(x, context), context, cache)

    def summed(
        self, x: Float[Tensor, "batch length width"], context: Context
    ) -> Float[Tensor, "batch length width"]:
        """Return dropout(norm(x + positions))."""
        if self.position is not None:
            x = x + self.position(context.layout).to(x.dtype)
        return F.dropout(self.embedding_norm(x), self.spec.embedding.dropout, self.training)

    def through_layers(
        self,
        x: Float[Tensor, "batch length width"],
        context: Context,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch read output_dim"]:
        """Run the layers and the last norm on the result of `summed`."""
        x, columns = self.projected(x), None
        if self.global_tokens is not None:
            x, context, columns = self.global_tokens.before(x, context)
        x = self.begin(x, context)
        stores = self.keeps_all or cache is not None or not torch.is_grad_enabled()
        if self.spec.residual.is_reversible and not stores:
            shared = chain(self.rotaries.parameters(), self.relatives.parameters())
            x = read_reversibly(self.stack, x, context, shared)
        else:
            x = self.through(self.stack, x, context, cache)
        if columns is not None:
            x = rows_at(x, columns)
        if context.layout.text is not None:  # the vectors of predicting streams come after the text
            x = x[:, context.layout.text.length :]
        return self.end(x)

    def projected(
        self, x: Float[Tensor, "batch length width"]
    ) -> Float[Tensor, "batch length dim"]:
        """Return vectors of the model's width."""
        return x if self.project_in is None else self.project_in(x)

    def begin(
        self, x: Float[Tensor, "batch length dim"], context: Context
    ) -> Float[Tensor, "batch length streams_dim"]:
        """Return the streams of the first layer, and make embedding and head available to all layers."""
        context.head = self.head
        context.provide("embedding", x)
        return next(self.stack).residual.widen(x)

    def end(
        self, x: Float[Tensor, "batch read streams_dim"]
    ) -> Float[Tensor, "batch read output_dim"]:
        """Return the last norm of the streams, joined into one."""
        last = cast(Layer, self.layers[self.spec.layer_indices[-1]])
        normed: Tensor = self.norm(last.residual.narrow(x))
        return normed

    def through(
        self,
        layers: Iterable[Layer],
        x: Float[Tensor, "batch length dim"],
        context: Context,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return the stream after some of the layers, one after another."""
        keeps_all = cache is not None or not torch.is_grad_enabled()
        for i, layer in enumerate(layers):
            layer.prepare(context)
            if keeps_all:
                x = layer(x, context, cache and cache.states(i))
            else:
                x = recomputed(layer, x, context, self.activation_checkpointing)
        return x

    @property
    def stack(self) -> Iterator[Layer]:
        """Yield the layers in the order of the forward pass; shared layers occur again."""
        return (cast(Layer, self.layers[i]) for i in self.order or self.spec.layer_indices)

    def mixers(self) -> Iterator[Mixer]:
        """Yield the mixers of all layers, in order."""
        for layer in self.stack:
            yield from layer.mixers().values()
