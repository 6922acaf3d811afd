"""The contract of branches: what stands between two points of the residual stream."""

from collections.abc import Sequence

from torch import nn

from archwright.parts.linear import Linear
from archwright.parts.tensor_parallel import TensorParallel


class Branch(nn.Module):
    """A module that reads the normed stream and whose result is added to it; all below has a sensible default.

    Attributes:
        first_pass: whether a batch is read for the first time, so that what is seen counts; not so while a layer is
            computed again for its backward pass.
        counts: the names of tensors in which a branch counts what it sees in a step, of which a larger batch has the
            sum; None where it has seen nothing.
    """

    first_pass: bool = True
    counts: Sequence[str] = ()

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
