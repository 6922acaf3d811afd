"""One layer: named branches, joined to the stream by a residual wiring."""

from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.branch import Branch
from archwright.parts.context import Context
from archwright.parts.linear import Linear
from archwright.parts.mixers import Mixer
from archwright.parts.residuals import Groups, Reversible, Step, Wiring
from archwright.parts.states import LayerState
from archwright.spec.errors import UserError

States = Mapping[str, LayerState]
"""States of a layer's mixers, by branch."""


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
        states: States | None = None,
        *,
        attention_mask: Tensor | None = None,
    ) -> Float[Tensor, "batch length width"]:
        """Return the stream after the layer.

        The model passes the context and the states of a cache. Without a context, each row is a text from position 0,
        and x the stream before the first layer.

        Args:
            x: All streams of the wiring, next to each other: width = streams * dim.
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
        out: Tensor = self.residual(x, self._wired(context, states), context)
        if self.layer_embedding is not None:
            out = self.layer_embedding(out, context)
        return out if self.layer_scalar is None else self.layer_scalar(out)

    def steps(self, context: Context) -> list[Step]:
        """Return, for each group of a reversible layer, its sum as a function of the other stream."""
        return cast(Reversible, self.residual).steps(self._wired(context, None))

    def _wired(self, context: Context, states: States | None) -> Groups:
        wired = {}
        for name in self.branches:
            is_mixer = name in self._takes
            given = {"context": context, "state": (states or {}).get(name)} if is_mixer else {}
            wired[name] = _Wired(self.branch(name), given)
        return {
            group: {name: wired[name] for name in names} for group, names in self.groups.items()
        }

    def branch(self, name: str) -> Branch:
        """Return a branch by name."""
        return cast(Branch, self.get_submodule(name))

    def mixers(self) -> dict[str, Mixer]:
        """Return the mixers by name."""
        return {name: cast(Mixer, self.get_submodule(name)) for name in self._takes}

    @property
    def provides(self) -> Mapping[str, int]:
        """Values for later layers: name -> numbers per token."""
        return ChainMap(*({**part.provides} for part in self._parts))

    @property
    def reads_from(self) -> Mapping[str, int]:
        """Values of earlier layers: name -> number of the layer; 0 is the stream before the first one."""
        skip = {"embedding": 0} if self.reads_embedding else {}
        return ChainMap(skip, *({**part.reads_from} for part in self._parts))

    @property
    def reads_embedding(self) -> bool:
        """True if a part between the branches reads the stream before the first layer."""
        return self.embedding_skip is not None or self.layer_embedding is not None

    @property
    def _parts(self) -> list[Branch | Wiring]:
        return [self.residual, *map(self.branch, self.branches)]

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


class _Wired:
    """A branch with its context and state."""

    def __init__(self, branch: Branch, given: Mapping[str, Any]) -> None:
        self.branch, self.given = branch, given

    @property
    def inputs(self) -> Sequence[Linear]:
        """Maps of x, which a wiring may compute together with other branches' maps."""
        return self.branch.inputs

    def __call__(self, x: Tensor, projected: Sequence[Tensor] | None = None) -> Tensor:
        given = self.given if projected is None else {**self.given, "projected": projected}
        out: Tensor = self.branch(x, **given)
        return out
