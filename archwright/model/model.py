"""The model: a decoder is an embedding, a stack of layers and a head; a layer is branches and their residual wiring.

    x = dropout(norm(embedding(tokens) + positions))        # Stack.add_positions
    for layer in layers: x = layer(x)                        # Stack.through; Layer.forward: x = x + f(norm(x))
    logits = head(norm(x))                                   # Stack.end, Decoder.output

`archwright.build` makes a `Decoder` from a spec; `Decoder.forward` is the whole pass.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from archwright.catalogue.summaries import one_line
from archwright.model.cache import Cache
from archwright.model.recomputation import recomputed
from archwright.parts.branch import Branch
from archwright.parts.context import Context
from archwright.parts.embeddings import Head, TokenEmbedding
from archwright.parts.linear import Linear, to_autocast_dtype
from archwright.parts.masks import MaskPattern
from archwright.parts.mixers import Mixer
from archwright.parts.residuals import Groups, Wired, Wiring
from archwright.parts.states import LayerState
from archwright.parts.token_layout import token_layout
from archwright.spec.errors import UserError
from archwright.spec.machine import ActivationCheckpointing
from archwright.spec.model_spec import ModelSpec

D = TypeVar("D", bound="Decoder")


@dataclass(frozen=True)
class Output:
    """Model outputs."""

    logits: Float[Tensor, "batch length vocab"]
    """Unnormalised log-probabilities of the vocabulary's tokens; of a head for replaced tokens, one log-odds."""
    sequence_logits: Float[Tensor, "batch classes"] | None = None
    """Logits of the classes of each row; None without a head for rows."""
    replaced_logits: Float[Tensor, "batch length"] | None = None
    """Log-odds that each token was replaced. `logits` are then the generator's."""
    read: Int[Tensor, "batch length"] | None = None
    """Tokens that `replaced_logits` judge."""


class Layer(nn.Module):
    """Branches in order, such as attention and a feed-forward, and the wiring that joins them to the stream.

    Args:
        residual: The wiring.
        branches: Modules by name. Mixers are called with x, the context and their state, other branches with x.
        groups: Names of branches that read the same normed stream and are added.
        mixers: Names of the mixers, and the inputs of a batch that each one uses.
        embedding_skip: Mixes the stream with the one before the first layer. Default: none.
        layer_embedding: Adds an embedding of the layer to its result. Default: none.
        layer_scalar: Multiplies the layer's result. Default: none.
    """

    def __init__(
        self,
        residual: Wiring,
        branches: Mapping[str, Branch],
        groups: Mapping[str, Collection[str]],
        mixers: Mapping[str, Collection[str]],
        embedding_skip: nn.Module | None = None,
        layer_embedding: nn.Module | None = None,
        layer_scalar: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.residual, self.groups, self._takes = residual, groups, mixers
        self.branches = tuple(branches)
        """Names of the branches, in order."""
        for name, branch in branches.items():
            self.add_module(name, branch)
        self.embedding_skip = embedding_skip
        self.layer_embedding, self.layer_scalar = layer_embedding, layer_scalar

    def forward(
        self,
        x: Float[Tensor, "batch length width"],
        context: Context | None = None,
        states: Mapping[str, LayerState] | None = None,
        *,
        attention_mask: Tensor | None = None,
    ) -> Float[Tensor, "batch length width"]:
        """Return the stream after the layer.

        The model passes the context and the states of a cache. Without a context, each row is a text from position 0,
        and x the stream before the first layer.

        Args:
            x: All streams of the wiring, next to each other: width = streams * dim.
            states: States of the mixers, by branch.
            attention_mask: Visible keys of each query, instead of the spec's mask, as in `SoftmaxAttention.forward`.

        Raises:
            UserError: `attention_mask` has another shape, or a branch ignores it.
        """
        if context is None:
            context = Context.alone(x, attention_mask)
            context.provide("embedding", x)
            self._check(context)
        if self.embedding_skip is not None:
            x = self.embedding_skip(x, self.residual.widen(context.read("embedding")))
        out: Tensor = self.residual(x, self.wired(context, states), context)
        if self.layer_embedding is not None:
            out = self.layer_embedding(out, context)
        return out if self.layer_scalar is None else self.layer_scalar(out)

    def wired(self, context: Context, states: Mapping[str, LayerState] | None = None) -> Groups:
        """Return the branches in groups, as functions of x."""
        states, wired = states or {}, {}
        for name in self.branches:
            is_mixer = name in self._takes
            given = {"context": context, "state": states.get(name)} if is_mixer else {}
            wired[name] = Wired(self.branch(name), given)
        return {
            group: {name: wired[name] for name in names} for group, names in self.groups.items()
        }

    def branch(self, name: str) -> Branch:
        """Return a branch by name."""
        return cast(Branch, self.get_submodule(name))

    def mixers(self) -> dict[str, Mixer]:
        """Return the mixers by name."""
        return {name: cast(Mixer, self.get_submodule(name)) for name in self._takes}

    def prepare(self, context: Context) -> None:
        """Prepare masks and rotations of a pass. They depend on data, and `forward` may be compiled.

        Raises:
            UserError: A branch ignores an input of the batch.
        """
        self._check(context)
        for mixer in self.mixers().values():
            mixer.prepare(context)

    def _check(self, context: Context) -> None:
        for name, takes in self._takes.items():
            for given in context.given - {"position_ids"} - {*takes}:
                mixer = type(self.get_submodule(name)).__name__
                raise UserError(
                    f"{name}: {mixer} takes no {given}; expected a batch without, or {given} in takes of its spec"
                )


class Stack(nn.Module):
    """Positions that are added to the embedding, a norm, the layers, and the last norm."""

    spec: ModelSpec
    embedding: nn.Module | None
    head: nn.Module | None
    layers: nn.ModuleList
    """Layers in order; shared layers occur once."""
    activation_checkpointing: ActivationCheckpointing = "none"
    """Activations that layers store for the backward pass; the rest is recomputed."""
    narrow_stream: bool = False
    """True if the residual stream has the dtype of autocast between layers."""
    order: tuple[int, ...] | None = None
    """Numbers of the layers in the order of a pass; None: that of the spec."""
    keeps_all: bool = False
    """True if every layer stores its activations, so that a trace counts them."""

    def assemble(
        self,
        spec: ModelSpec,
        position: nn.Module | None,
        embedding_norm: nn.Module,
        project_in: Linear | None,
        rotaries: Mapping[str, nn.Module],
        relatives: Mapping[str, nn.Module],
        layers: Iterable[Layer],
        norm: nn.Module,
    ) -> None:
        """Register the parts of a stack, in this order."""
        self.spec, self.position, self.embedding_norm = spec, position, embedding_norm
        self.project_in = project_in
        self.rotaries, self.relatives = nn.ModuleDict(rotaries), nn.ModuleDict(relatives)
        self.layers, self.norm = nn.ModuleList(layers), norm

    def add_positions(
        self, x: Float[Tensor, "batch length width"], context: Context
    ) -> Float[Tensor, "batch length width"]:
        """Return dropout(norm(x + positions)) for embedded tokens x."""
        if self.position is not None:
            x = x + self.position(context.layout).to(x.dtype)
        return F.dropout(self.embedding_norm(x), self.spec.embedding.dropout, self.training)

    def run_layers(
        self, x: Float[Tensor, "batch length width"], context: Context, cache: Cache | None = None
    ) -> Float[Tensor, "batch length output_dim"]:
        """Run all layers and the last norm on the result of `add_positions`."""
        x = self.begin(x, context)
        whole_pass = next(self.stack).residual.whole_pass
        stores = self.keeps_all or cache is not None or not torch.is_grad_enabled()
        if whole_pass is None or stores:
            return self.end(self.through(self.stack, x, context, cache))
        shared = chain(self.rotaries.parameters(), self.relatives.parameters())
        return self.end(whole_pass(self.stack, x, context, shared))

    def begin(
        self, x: Float[Tensor, "batch length width"], context: Context
    ) -> Float[Tensor, "batch length streams_dim"]:
        """Return the input of the first layer, and provide embedding and head to all layers."""
        x = x if self.project_in is None else self.project_in(x)
        context.head = self.head
        context.provide("embedding", x)
        return next(self.stack).residual.widen(x)

    def through(
        self,
        layers: Iterable[Layer],
        x: Float[Tensor, "batch length streams_dim"],
        context: Context,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch length streams_dim"]:
        """Run some of the layers in order: prepare each for the pass, then call it."""
        trains = cache is None and torch.is_grad_enabled()
        for i, layer in enumerate(layers):
            layer.prepare(context)
            x = to_autocast_dtype(x) if self.narrow_stream else x
            if trains and self.activation_checkpointing != "none":
                x = recomputed(layer, x, context, self.activation_checkpointing)
            else:
                x = layer(x, context, cache and cache.states(i))
        return x

    def end(
        self, x: Float[Tensor, "batch length streams_dim"]
    ) -> Float[Tensor, "batch length output_dim"]:
        """Join the streams into one and apply the last norm."""
        last = cast(Layer, self.layers[self.spec.layer_indices[-1]])
        normed: Tensor = self.norm(last.residual.narrow(x))
        return normed

    @property
    def stack(self) -> Iterator[Layer]:
        """Yield the layers in the order of the forward pass; shared layers occur again."""
        return (cast(Layer, self.layers[i]) for i in self.order or self.spec.layer_indices)

    def mixers(self) -> Iterator[Mixer]:
        """Yield the mixers of all layers, in order."""
        for layer in self.stack:
            yield from layer.mixers().values()


class Decoder(Stack):
    """A stack of layers between an embedding and a head; `archwright.build` makes it from a spec.

    Models with more than one stack derive from it. They take the inputs of a batch by name (`archwright.data.inputs`).

    Args:
        sequence_head: Classifies rows; None if only tokens are predicted.
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
        self.head: Head = head
        self.sequence_head = sequence_head

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
        return Output(self.head(hidden), self.sequence_logits(hidden, padding_mask))

    def hidden(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        token_type_ids: Int[Tensor, "batch length"] | None = None,
        cache: Cache | None = None,
        **layout: Any,
    ) -> Float[Tensor, "batch length output_dim"]:
        """Return the input of the head for each token. Arguments: as in `forward`."""
        new_context: Callable[..., Context] = cache.context if cache else self.new_context
        context = new_context(tokens, **layout)
        x = self.add_positions(self.embedding(tokens, token_type_ids), context)
        return self.run_layers(x, context, cache)

    def new_context(self, tokens: Int[Tensor, "batch length"], **layout: Any) -> Context:
        """Return the context of a pass without a cache. Arguments: as in `forward`."""
        return Context(token_layout(tokens, **layout), len(tokens), tokens=tokens)

    def sequence_logits(
        self,
        hidden: Float[Tensor, "batch length dim"],
        padding_mask: Bool[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch classes"] | None:
        """Return the logits of `sequence_head` for the first real token of each row; None without that head."""
        if self.sequence_head is None:
            return None
        if padding_mask is None:
            first = hidden[:, 0]
        else:
            at = padding_mask.long().argmax(-1)
            first = hidden[torch.arange(len(hidden), device=hidden.device), at]  # [batch, dim]
        logits: Tensor = self.sequence_head(first)
        return logits

    @property
    def can_cache(self) -> bool:
        """True if texts can be continued, by the states of all mixers."""
        return all(mixer.can_cache for mixer in self.mixers())

    @property
    def can_generate_indefinitely(self) -> bool:
        """True if a text may have any length: the cost of a token is bounded, and positions have no end."""
        bounded = all(mixer.generates_indefinitely for mixer in self.mixers())
        return bounded and not self.spec.position.absolute

    @property
    def switch_lengths(self) -> tuple[int, ...]:
        """Lengths after which a text must be read again, because all angles change (LongRoPE's original_length)."""
        layers = self.spec.layers_by_kind.values()
        return tuple(sorted({n for layer in layers if (n := layer.position.switch_length)}))

    def new_cache(self) -> Cache:
        """Return an empty cache for `forward`.

        Raises:
            UserError: A mask shows later tokens, or a mixer has no state.
        """
        return Cache(self.masks, [layer.mixers() for layer in self.stack], self.switch_lengths)

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The stacks of layers, an encoder first."""
        return (self,)

    @property
    def all_layers(self) -> Iterator[Layer]:
        """Yield the layers of all stacks, an encoder's first."""
        return chain(*(stack.stack for stack in self.stacks))

    def use_kernel(self: D, name: str) -> D:
        """Compute attention with a kernel: eager (the reference), sdpa, blockwise or flex."""
        for stack in self.stacks:
            for mixer in stack.mixers():
                mixer.use_kernel(name)
        return self

    def checkpoint_activations(self: D, what: ActivationCheckpointing = "full") -> D:
        """Store fewer activations and recompute the rest, as in `machine.activation_checkpointing`."""
        for stack in self.stacks:
            stack.activation_checkpointing = what
        return self

    def num_parameters(self) -> int:
        """Return the number of parameters; a tied table counts once."""
        return sum(p.numel() for p in self.parameters())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({one_line(self.spec, self.num_parameters())})"
