"""Base class of recurrent mixers: state, documents, padding, pieces of a text, and scan kernels."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

import archwright.parts.fla_scan  # noqa: F401  # registers the kernel
from archwright.parts.context import Context
from archwright.parts.linear import project
from archwright.parts.mixers.base import Mixer
from archwright.parts.scans import SCANS, linear_scan
from archwright.parts.short_conv import Taps
from archwright.parts.states import RecurrentState
from archwright.parts.tensor_parallel import TensorParallel, parallel_of
from archwright.parts.token_layout import TokenLayout
from archwright.spec.errors import UserError

Conv = Callable[[str, Tensor], Tensor]
"""Function (name of a `ShortConv` or `TokenShift`, x) -> its output, with the state of the piece before."""


class StateTensor(NamedTuple):
    """One tensor of a recurrent state."""

    shape: tuple[int, ...]
    """Shape for one text."""
    dtype: Literal["float32", "activation"] = "float32"
    """float32 or wider, or the dtype of the activations."""
    blocks: int | None = None
    """Equal blocks that ranks may split, such as heads; None: any part."""

    def zeros(self, x: Tensor) -> Tensor:
        """Return the state before the first token of texts x [batch, length, dim]."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return x.new_zeros(len(x), *self.shape, dtype=wide if self.dtype == "float32" else None)


class Boundaries(NamedTuple):
    """Tokens at which a scan departs from the plain recurrence; None: no such token."""

    resets: Bool[Tensor, "batch length"] | None
    """True for the first token of a document, whose state begins with zeros."""
    real: Bool[Tensor, "batch length"] | None
    """False for padding, which leaves the state as it is."""
    first: Bool[Tensor, "rows length"]
    """True for the first token of each text, also if no state has to be reset; rows is 1 or batch."""


class RecurrentMixer(Mixer):
    """Base of mixers with a state of fixed size, y = output(scan(project(x))), shapes [batch, length, dim].

    A mixer defines `inputs`, `state_tensors`, `project` and `output`, and `scan` unless it is a `linear_scan`. Its spec
    declares takes = {"segment_ids", "padding_mask"}: both are handled here and in `linear_scan` and `ShortConv`.

    Attributes:
        scans: Kernels by name, such as `archwright.parts.scans.SCANS`.
        kernel: Name of the scan kernel.
        num_heads: Heads of the state, for `parallel_by_heads`; on a rank of a tensor group, its own.
    """

    scans: Mapping[str, Any] = SCANS
    chunk_size: int = 64
    kernel: str = "chunked"
    num_heads: int = 1

    @abstractmethod
    def state_tensors(self) -> Mapping[str, StateTensor]:
        """Return the tensors of the state by name, without those of convolutions."""

    @abstractmethod
    def project(self, x: Tensor, projected: Sequence[Tensor], conv: Conv) -> Any:
        """Return the inputs of the scan.

        Args:
            x: Tokens [batch, length, dim].
            projected: Results of `inputs`.
            conv: Applies a convolution by its name, as in `conv("query_conv", q)`.
        """

    def exchange(self, inputs: Any, context: Context) -> Any:
        """Return the inputs of the scan after an exchange of values with other layers; default: no exchange."""
        return inputs

    @abstractmethod
    def output(self, mixed: Tensor, inputs: Any) -> Float[Tensor, "batch length dim"]:
        """Return the result of the mixer from the output of the scan and from its inputs."""

    def scan(
        self, inputs: Any, state: Mapping[str, Tensor], boundaries: Boundaries
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the scan's output for each token, and the new state.

        Args:
            inputs: Result of `project`.
            state: Tensors of `state_tensors` [batch, ...] before these tokens; zeros at the beginning.
            boundaries: Beginnings of documents, and padding.
        """
        q, k, v, log_decay, beta, _ = inputs
        options: dict[str, Any] = {"chunk_size": self.chunk_size, "kernel": self.kernel}
        options |= {"resets": boundaries.resets, "real": boundaries.real}
        out, new = linear_scan(q, k, v, log_decay, beta, state=state["state"], **options)
        return out, {"state": new}

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        context: Context,
        state: RecurrentState | None = None,
        projected: Sequence[Tensor] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        layout = context.layout
        new: dict[str, Tensor] = {}
        conv = partial(self._convolved, layout, state, new)
        resets, real, first = None, layout.padding_mask, layout.index_or_range() == 0
        if layout.segment_ids is not None:  # [batch, length]
            # Padding may have the index of a first token.
            resets = first if real is None else first & real
        projected = project(x, self.inputs) if projected is None else projected
        inputs = self.exchange(self.project(x, projected, conv), context)
        before: dict[str, Tensor] = {}
        for name, tensor in self.state_tensors().items():
            held = None if state is None else state.get(name)
            before[name] = tensor.zeros(x) if held is None else held
        mixed, after = self.scan(inputs, before, Boundaries(resets, real, first))
        if state is not None:
            state.update(**new, **after)
        out: Tensor = self.output(mixed, inputs)
        return out

    def _convolved(
        self,
        layout: TokenLayout,
        state: RecurrentState | None,
        new: dict[str, Tensor],
        name: str,
        x: Tensor,
    ) -> Tensor:
        """Apply the convolution of this name, and put its new state into `new`."""
        y: Tensor
        y, new[name] = getattr(self, name)(x, layout, None if state is None else state.get(name))
        return y

    def new_state(self, batch: int) -> RecurrentState:
        return RecurrentState()

    def state_bytes(self, length: int, itemsize: int) -> int:
        wide = max(4, itemsize)
        convs = (m for m in self.modules() if isinstance(m, Taps))
        return itemsize * sum((conv.width - 1) * conv.channels for conv in convs) + sum(
            math.prod(tensor.shape) * (wide if tensor.dtype == "float32" else itemsize)
            for tensor in self.state_tensors().values()
        )

    @property
    def kept_blocks(self) -> int | None:
        if parallel_of(self) is None:  # all ranks compute this mixer in full
            return 1
        return min((t.blocks for t in self.state_tensors().values() if t.blocks), default=None)

    def parallel_by_heads(self, per_head: Mapping[str, int] | None = None) -> TensorParallel:
        """Return the split of `num_heads`, and of parameters with a row for each head, by name and axis."""
        return TensorParallel({"num_heads": self.num_heads}, per_head or {})

    def kernels(self) -> Sequence[str]:
        return [name for name in self.scans if name != "fla"]

    def use_kernel(self, name: str) -> None:
        """Compute scans with the kernel of this name; names that are not in `scans` change nothing."""
        self.kernel = name if name in self.scans else self.kernel


@torch.no_grad()
def init_steps(bias: Tensor, least: float, most: float) -> None:
    """Set a bias to the inverse softplus of log-uniform steps."""
    steps = bias.uniform_(math.log(least), math.log(most)).exp()
    bias.copy_(steps + torch.log(-torch.expm1(-steps)))


def use_scan(model: nn.Module, name: str) -> None:
    """Compute all recurrences of a model with one of `SCANS`; auto: with the usual one.

    Raises:
        UserError: The kernel is not available on this machine.
    """
    if name not in ("auto", *SCANS):
        raise UserError(
            f'machine.scan: found "{name}", which needs a GPU and pip install flash-linear-attention; expected one of '
            f"{', '.join(SCANS)}"
        )
    for module in model.modules():
        if isinstance(module, RecurrentMixer):
            module.use_kernel(name)
