"""One layer: named branches, wired by a residual choice."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.context import Context
from archwright.parts.linear import Linear
from archwright.parts.mixers import Mixer
from archwright.parts.residuals import Branch
from archwright.parts.states import LayerState
from archwright.spec.errors import UserError

States = Mapping[str, LayerState]
"""States of a layer's mixers, by the names of their branches."""


class Layer(nn.Module):
    """Branches in order, such as attention and a feed-forward; the residual part says how they join the stream.

    Args:
        branches: modules by name. Mixers are called with x, the context and their state; others with x alone.
        groups: the names of branches that read the same normed stream and are added; each by itself, if not given.
        takes: what mixers do not ignore of what a batch has beside its tokens, by name; all, if not given.
    """

    def __init__(
        self,
        residual: nn.Module,
        branches: Mapping[str, nn.Module],
        groups: Mapping[str, Collection[str]] | None = None,
        takes: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        super().__init__()
        self.residual, self._takes = residual, takes or {}
        self.branches = tuple(branches)
        """Names of the branches, in order."""
        self._groups = groups or {name: (name,) for name in branches}
        for name, branch in branches.items():
            self.add_module(name, branch)

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
        `SoftmaxAttention.forward` takes it.

        Raises:
            UserError: an `attention_mask` of another shape, or one that a branch ignores.
        """
        if context is None:
            context = Context.alone(x, attention_mask)
            self._check(context)
        groups: dict[str, dict[str, _Branch]] = {}
        for group, names in self._groups.items():
            groups[group] = {
                name: _Branch(self.get_submodule(name), context, (states or {}).get(name))
                for name in names
            }
        out: Tensor = self.residual(x, groups)
        return out

    def mixers(self) -> dict[str, Mixer]:
        """Return the branches in which tokens exchange information, by name."""
        branches = ((name, self.get_submodule(name)) for name in self.branches)
        return {name: branch for name, branch in branches if isinstance(branch, Mixer)}

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


class _Branch:
    """A branch with what it needs besides x."""

    def __init__(self, module: nn.Module, context: Context, state: LayerState | None) -> None:
        self.module = module
        self.given: dict[str, Any] = {}
        if isinstance(module, Mixer):
            self.given = {"context": context, "state": state}

    @property
    def inputs(self) -> Sequence[Linear]:
        """Its maps that read x, which a wiring may compute together with those of other branches."""
        return self.module.inputs if isinstance(self.module, Branch) else ()

    def __call__(self, x: Tensor, projected: Sequence[Tensor] | None = None) -> Tensor:
        given = self.given if projected is None else {**self.given, "projected": projected}
        out: Tensor = self.module(x, **given)
        return out
