"""A stack of layers, with what stands before the first and behind the last."""

from collections.abc import Iterable, Iterator, Mapping
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from archwright.model.cache import Cache
from archwright.model.layer import Layer, recomputed
from archwright.parts.context import Context
from archwright.parts.mixers import Mixer
from archwright.spec.model_spec import ModelSpec


class Stack(nn.Module):
    """Layers that read embedded tokens: positions that are added, a norm, the layers, and a last norm."""

    spec: ModelSpec
    embedding: nn.Module | None
    position: nn.Module | None
    embedding_norm: nn.Module
    layers: nn.ModuleList
    norm: nn.Module
    checkpoints_activations: bool = False
    """Whether layers keep only what enters them, and are computed again in the backward pass."""

    def assemble(
        self,
        spec: ModelSpec,
        position: nn.Module | None,
        embedding_norm: nn.Module,
        rotaries: Mapping[str, nn.Module],
        relatives: Mapping[str, nn.Module],
        layers: Iterable[Layer],
        norm: nn.Module,
    ) -> None:
        """Take the parts of a stack, in the order in which they are registered."""
        self.spec, self.position, self.embedding_norm = spec, position, embedding_norm
        self.rotaries, self.relatives = nn.ModuleDict(rotaries), nn.ModuleDict(relatives)
        self.layers, self.norm = nn.ModuleList(layers), norm

    def read(
        self,
        x: Float[Tensor, "batch length dim"],
        context: Context,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return what the layers make of embedded tokens, after the last norm."""
        if self.position is not None:
            x = x + self.position(context.layout).to(x.dtype)
        x = F.dropout(self.embedding_norm(x), self.spec.embedding.dropout, self.training)
        context.embedding = x
        for i, layer in enumerate(self.stack):
            layer.prepare(context)
            if self.checkpoints_activations and torch.is_grad_enabled() and cache is None:
                x = recomputed(layer, x, context)
            else:
                x = layer(x, context, cache and cache.states(i))
        normed: Tensor = self.norm(x)
        return normed

    @property
    def stack(self) -> Iterator[Layer]:
        """Yield the layers in order, as what they are."""
        return iter(cast(Iterable[Layer], self.layers))

    def mixers(self) -> Iterator[Mixer]:
        """Yield all branches in which tokens exchange information, layer by layer."""
        for layer in self.stack:
            yield from layer.mixers().values()

    def use_kernel(self, name: str) -> "Stack":
        """Compute attention with one of the kernels: eager (the reference), sdpa, blockwise,
        flex."""
        for mixer in self.mixers():
            mixer.use_kernel(name)
        return self
