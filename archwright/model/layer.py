"""One layer: named branches, wired by a residual choice."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.branch import Branch
from archwright.parts.context import Context
from archwright.parts.global_tokens import GlobalNorm
from archwright.parts.linear import Linear
from archwright.parts.mixers import Mixer
from archwright.parts.residuals import Groups, Step
from archwright.parts.states import LayerState
from archwright.spec.errors import UserError

States = Mapping[str, LayerState]
"""States of a layer's mixers, by the names of their branches."""


class Layer(nn.Module):
    """Branches in order, such as attention and a feed-forward; the residual part says how they join the stream.

    Args:
        branches: modules by name. Mixers are called with x, the context and their state; others with x alone.
        groups: names of the branches that read the same normed stream and are added.
        mixers: names of the branches in which tokens exchange information, and what each does not ignore of what
            a batch has beside its tokens.
        embedding_skip: what joins the stream and the one before the first layer; None: the layer begins with the
            stream as it is.
        global_norm: what norms global tokens before attention; None: the norm of all others.
    """

    def __init__(
        self,
        residual: nn.Module,
        branches: Mapping[str, Branch],
        groups: Mapping[str, Collection[str]],
        mixers: Mapping[str, Collection[str]],
        embedding_skip: nn.Module | None = None,
        global_norm: GlobalNorm | None = None,
    ) -> None:
        super().__init__()
        self.residual, self.groups, self._takes = residual, groups, mixers
        self.branches = tuple(branches)
        """Names of the branches, in order."""
        for name, branch in branches.items():
            self.add_module(name, branch)
        self.embedding_skip, self.global_norm = embedding_skip, global_norm

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        context: Context | None = None,
        states: States | None = None,
        *,
        attention_mask: Tensor | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return the stream behind the layer.

        A model gives the context, and the states of a cache. Alone, each row is a text that begins at position 0;
        `attention_mask` then says which keys a query may see, in place of the spec's mask, as
        `SoftmaxAttention.forward` takes it. Where the layer asks for the stream before the first, it is x.

        Raises:
            UserError: an `attention_mask` of another shape, or one that a branch ignores.
        """
        if context is None:
            context = Context.alone(x, attention_mask)
            self._check(context)
        if self.embedding_skip is not None:
            x = self.embedding_skip(x, x if context.embedding is None else context.embedding)
        more: tuple[Any, ...] = () if context.replay is None else (context.replay,)
        if self.global_norm is not None:
            more = (partial(self.global_norm, context.layout),)
        out: Tensor = self.residual(x, self._wired(context, states), *more)
        return out

    def steps(self, context: Context) -> list[Step]:
        """Return what each group of a reversible layer adds to one stream, as a function of the other."""
        steps: list[Step] = cast(Any, self.residual).steps(self._wired(context, None))
        return steps

    def _wired(self, context: Context, states: States | None) -> Groups:
        wired = {name: _Wired(self.branch(name)) for name in self.branches}
        for name in self._takes:
            wired[name].given = {"context": context, "state": (states or {}).get(name)}
        return {
            group: {name: wired[name] for name in names} for group, names in self.groups.items()
        }

    def branch(self, name: str) -> Branch:
        """Return a branch by its name."""
        return cast(Branch, self.get_submodule(name))

    def mixers(self) -> dict[str, Mixer]:
        """Return the branches in which tokens exchange information, by name."""
        return {name: cast(Mixer, self.get_submodule(name)) for name in self._takes}

    def prepare(self, context: Context) -> None:
        """Do what depends on the data of a pass, ahead of `forward`, which may be compiled.

        Raises:
            UserError: the batch has something that a branch ignores.
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
    """A branch with what it is given besides x."""

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.given: dict[str, Any] = {}

    @property
    def inputs(self) -> Sequence[Linear]:
        """Its maps that read x, which a wiring may compute together with those of other branches."""
        return self.branch.inputs

    def __call__(self, x: Tensor, projected: Sequence[Tensor] | None = None) -> Tensor:
        given = self.given if projected is None else {**self.given, "projected": projected}
        out: Tensor = self.branch(x, **given)
        return out
