"""One layer: named branches, wired by a residual choice."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.context import Context
from archwright.parts.linear import Linear
from archwright.parts.mixers import Mixer
from archwright.parts.residuals import Branch
from archwright.parts.states import LayerState

States = Mapping[str, LayerState]
"""What the mixers of a layer keep of earlier tokens, by the names of their branches."""


class Layer(nn.Module):
    """Branches in order, such as attention and a feed-forward; the residual part says how they join the stream.

    Args:
        branches: modules by name. Mixers are called with x, the context and their state; others with x alone.
    """

    def __init__(self, residual: nn.Module, branches: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.residual = residual
        self.branches = tuple(branches)
        """Names of the branches, in order."""
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
        """
        if context is None:
            context = Context.alone(x, attention_mask)
        wired: dict[str, _Branch] = {}
        for name in self.branches:
            wired[name] = _Branch(self.get_submodule(name), context, (states or {}).get(name))
        out: Tensor = self.residual(x, wired)
        return out

    def mixers(self) -> dict[str, Mixer]:
        """Return the branches in which tokens exchange information, by name."""
        branches = ((name, self.get_submodule(name)) for name in self.branches)
        return {name: branch for name, branch in branches if isinstance(branch, Mixer)}

    def prepare(self, context: Context) -> None:
        """Do what depends on the data of a pass, ahead of `forward`, which may be compiled."""
        for mixer in self.mixers().values():
            mixer.prepare(context)


class _Branch:
    """A branch with what it needs besides x."""

    def __init__(self, module: nn.Module, context: Context, state: LayerState | None) -> None:
        self.module = module
        self.given: dict[str, Any] = {}
        self.inputs: Sequence[Linear] = ()
        """Its maps that read x, which a wiring may compute together with those of other branches."""
        if isinstance(module, Mixer):
            self.given = {"context": context, "state": state}
        if isinstance(module, Branch):
            self.inputs = module.inputs

    def __call__(self, x: Tensor, projected: Sequence[Tensor] | None = None) -> Tensor:
        given = self.given if projected is None else {**self.given, "projected": projected}
        out: Tensor = self.module(x, **given)
        return out
