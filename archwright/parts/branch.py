"""The contract of branches: what stands between two points of the residual stream."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Protocol, runtime_checkable

from torch import nn

from archwright.parts.linear import Linear
from archwright.parts.tensor_parallel import TensorParallel

Role = Literal["vector", "matrix", "kernel"]


@runtime_checkable
class HasRoles(Protocol):
    """A module that states the roles of its parameters, as every `Branch` does."""

    roles: Mapping[str, Role]


class Branch(nn.Module):
    """A module between two points of the residual stream: it reads the normed stream, and its result is added.

    All members have a default. Values cross layers through the context: `context.provide(name, tensor)` in one layer,
    `context.read(name)` in a later one. The stack keeps them for one pass, also while a layer is recomputed. Its own
    value is "embedding" of layer 0: the stream before the first layer, [batch, length, dim].

    Attributes:
        first_pass: False while a layer is recomputed in the backward pass, where nothing must be counted again.
        counts: Names of tensors that count events of a step, such as tokens per expert. Ranks sum them; None is empty.
        provides: Values for later layers: name -> numbers per token. A name belongs to one layer.
        reads_from: Values of earlier layers: name -> number of the providing layer, from 1.
        auxiliary: Auxiliary loss of the last forward pass in training, a scalar tensor. The training step adds it to
            the loss and resets it to None. Scale it as it should enter the loss; set it only if `first_pass`.
        auxiliary_name: Name of that loss in the log, ending with `_loss`; losses with one name are added up.
        roles: Role in optimization of a parameter, by its name in this module: Muon makes a "matrix" orthogonal, weight
            decay shrinks a "matrix" or a "kernel", neither applies to a "vector". Required for parameters with two axes
            in no Linear, embedding, convolution or expert stack, as in `{"A_log": "vector"}`.
    """

    first_pass: bool = True
    counts: Sequence[str] = ()
    roles: Mapping[str, Role] = MappingProxyType({})
    provides: Mapping[str, int] = {}
    reads_from: Mapping[str, int] = {}
    auxiliary: Any = None
    auxiliary_name: str = "auxiliary_loss"

    @property
    def inputs(self) -> Sequence[Linear]:
        """The maps that read x; `forward` is given their results, in this order, where a wiring has computed them
        together with those of other branches."""
        return ()

    @property
    def along_text(self) -> str:
        """The option of its spec by which a token depends on others of its text otherwise than through the keys that
        `Context.all_keys` gives; empty: none does, so that processes may share the tokens of a text. Who inherits this
        and looks otherwise must override it."""
        return ""

    @property
    def across_layers(self) -> str:
        """The option of its spec by which it depends on other layers otherwise than through the stream; empty: none
        does, so that processes may have some of the layers each."""
        return ""

    @property
    def source_maps(self) -> Sequence[Linear]:
        """The maps that read an encoder's output, once for each token of the source."""
        return ()

    @property
    def tensor_parallel(self) -> TensorParallel | None:
        """What processes may share of it; None: each that has it computes all of it."""
        return None

    @property
    def expert_parallel(self) -> nn.Module | None:
        """What of it is called with rows sorted by expert, `(x, which, ends)` of `GroupedLinear`, and looks at each by
        itself, so that processes may have some of the experts each; None: nothing."""
        return None

    def after_step(self, *, updated: bool) -> None:
        """Do what follows from the batches of a training step; `updated`: whether the weights moved."""
