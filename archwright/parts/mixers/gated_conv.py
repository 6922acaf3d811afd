"""Gated short convolution: a mixer without a state other than the last tokens of its convolution."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from archwright.parts.linear import Linear
from archwright.parts.mixers.recurrent import Boundaries, Conv, RecurrentMixer, StateTensor
from archwright.parts.sharing import LayerInfo
from archwright.parts.short_conv import ShortConv
from archwright.parts.tensor_parallel import TensorParallel
from archwright.spec import recurrences as spec


class GatedConv(RecurrentMixer):
    """y = out(c * conv(b * x)), with b, c and x linear in u. Shapes: u, b, c, x and y [batch, length, dim].

    Liquid AI, 2025, LFM2 Technical Report, section 2; transformers, `lfm2`.
    """

    scans: Mapping[str, Any] = {}

    def __init__(self, spec: spec.ShortConvolution, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        self.channels = dim
        self.in_gate, self.out_gate = (
            Linear(dim, dim, bias=spec.bias, deepnorm=False) for _ in range(2)
        )
        self.value = Linear(dim, dim, bias=spec.bias)
        self.conv = ShortConv(dim, spec.width, bias=spec.bias)
        self.out = Linear(dim, dim, bias=spec.bias, is_residual_output=True)

    @property
    def inputs(self) -> list[Linear]:
        return [self.in_gate, self.out_gate, self.value]

    @property
    def tensor_parallel(self) -> TensorParallel:
        # Channels do not meet before `out`.
        return TensorParallel({"channels": self.channels})

    def state_tensors(self) -> dict[str, StateTensor]:
        return {}

    def project(self, x: Tensor, projected: Sequence[Tensor], conv: Conv) -> Tensor:
        in_gate, out_gate, value = projected
        return out_gate * conv("conv", in_gate * value)  # [batch, length, dim]

    def scan(
        self, inputs: Tensor, state: Mapping[str, Tensor], boundaries: Boundaries
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        return inputs, {}

    def output(self, mixed: Tensor, inputs: Tensor) -> Tensor:
        out: Tensor = self.out(mixed)
        return out
