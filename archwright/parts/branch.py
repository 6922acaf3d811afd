"""Interface of branches: modules between two points of the residual stream."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Protocol, runtime_checkable

from torch import nn

from archwright.parts.linear import Linear
from archwright.parts.tensor_parallel import TensorParallel

Role = Literal["vector", "matrix", "kernel"]


@runtime_checkable
class HasRoles(Protocol):
    """Module with roles for its parameters, such as every `Branch`."""

    roles: Mapping[str, Role]


class Branch(nn.Module):
    """Module that reads the normed residual stream and adds its result to it.

    All members have a default. Values cross layers through the context: `context.provide(name, tensor)` in one layer,
    `context.read(name)` in a later one. The stack keeps them for one pass, including recomputation. It provides
    "embedding" as layer 0: the stream before the first layer, [batch, length, dim].

    Attributes:
        first_pass: False during recomputation in the backward pass, which must not count events again.
        counts: Names of tensors that count events of a step, such as tokens per expert. Ranks sum them; None: empty.
        provides: Values for later layers: name -> numbers per token. A name belongs to one layer.
        reads_from: Values of earlier layers: name -> number of the providing layer, from 1.
        auxiliary: Auxiliary loss of the last forward pass in training, a scalar tensor. The training step adds it to
            the loss and resets it to None. It includes its coefficient. Set it only if `first_pass`.
        auxiliary_name: Name of the auxiliary loss in the log, ending with `_loss`; equal names are summed.
        roles: Optimization role by parameter name: Muon orthogonalizes updates of a "matrix", weight
            decay shrinks a "matrix" or a "kernel", neither applies to a "vector". Required for parameters with two axes
            outside of Linear, embedding, convolution and expert stacks, as in `{"A_log": "vector"}`.
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
        """Maps that read x. If a wiring computes them jointly for several branches, `forward` receives their results in
        this order as `projected`."""
        return ()

    @property
    def along_text(self) -> str:
        """Spec option that prevents context parallelism; empty: ranks may split the tokens of a sequence.

        Override it if tokens interact by any means except the keys of `Context.all_keys`."""
        return ""

    @property
    def across_layers(self) -> str:
        """Spec option that prevents pipeline parallelism, because layers depend on each other outside of the residual
        stream; empty: ranks may split the layers."""
        return ""

    @property
    def source_maps(self) -> Sequence[Linear]:
        """Maps that read the encoder output, once per source token."""
        return ()

    @property
    def tensor_parallel(self) -> TensorParallel | None:
        """Sizes that ranks may split; None: every rank computes the full branch."""
        return None

    @property
    def expert_parallel(self) -> nn.Module | None:
        """Module that ranks may split by expert; None: no expert parallelism.

        Arguments as in `GroupedLinear`: (x, which, ends), with rows sorted by expert and computed independently."""
        return None

    def after_step(self, *, updated: bool) -> None:
        """Update buffers after a training step; `updated` is False if the optimizer skipped the step."""
