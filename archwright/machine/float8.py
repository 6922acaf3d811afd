"""Matrix products of 8-bit floats on GPUs, by torchao."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from archwright.spec.errors import UserError

CAPABLE = (8, 9)
"""First CUDA compute capability with products of 8-bit floats."""
ALIGNED = 16
"""Sizes of their matrices are multiples of this number."""


def check_float8(device: str) -> None:
    """Refuse products of 8-bit floats if they cannot run here.

    Raises:
        UserError: The GPU does not support them, or torchao is not installed.
    """
    if device != "cuda":
        raise UserError('machine.precision: found "fp8", which needs a GPU; expected "bf16"')
    capability = torch.cuda.get_device_capability()
    if capability < CAPABLE:
        raise UserError(
            'machine.precision: found "fp8", which needs a GPU of compute capability '
            f'{".".join(map(str, CAPABLE))}, this one has {".".join(map(str, capability))}; expected "bf16"'
        )
    if find_spec("torchao") is None:
        raise UserError(
            'machine.precision: found "fp8", which needs torchao; install it with: '
            "pip install archwright[fp8]"
        )


class Float8Products(TorchFunctionMode):
    """Context in which `F.linear` multiplies 8-bit floats, with wide sums.

    x and W are scaled to e4m3, gradients to e5m2, each tensor by one number. Maps with `spared` outputs (the head), or
    with a size that is no multiple of `ALIGNED`, are unchanged.

    Args:
        spared: Number of outputs of maps that are unchanged.
        emulated: Round to 8 bits but multiply wider numbers, on any device.

    Source: Micikevicius et al., 2022, FP8 Formats for Deep Learning.
    """

    def __init__(self, spared: int | None = None, *, emulated: bool = False) -> None:
        super().__init__()
        self.spared, self.emulated = spared, emulated
        self._maps: dict[tuple[int, int, bool], nn.Module] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.linear:
            x, weight = args[:2]
            sides = (*weight.shape, x.numel() // x.shape[-1])
            if weight.shape[0] != self.spared and all(side % ALIGNED == 0 for side in sides):
                return self._product(*args)
        return func(*args, **(kwargs or {}))

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        parameters = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        d_out, d_in = weight.shape
        key = (d_out, d_in, bias is not None)
        if key not in self._maps:
            self._maps[key] = _float8_map(*key, emulated=self.emulated)
        product: Tensor = torch.func.functional_call(
            self._maps[key], parameters, (x.to(torch.bfloat16),)
        )
        return product


def _float8_map(d_out: int, d_in: int, bias: bool, *, emulated: bool) -> nn.Module:
    """Return torchao's linear map of a shape, on the meta device."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    plain = nn.Sequential(nn.Linear(d_in, d_out, bias=bias, device="meta"))
    made: nn.Module = convert_to_float8_training(plain, config=Float8LinearConfig(emulate=emulated))
    return made.get_submodule("0")
