"""Matrix products of 8-bit floats, for GPUs that have them, through torchao."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from archwright.spec.errors import UserError

CAPABLE = (8, 9)
"""The first CUDA compute capability whose units multiply 8-bit floats."""
ALIGNED = 16
"""Their products take sides that are multiples of this."""


def check_float8(device: str) -> None:
    """Make sure that products of 8-bit floats can run here.

    Raises:
        UserError: no such GPU, or no torchao.
    """
    if device != "cuda":
        raise UserError('machine.precision: found "fp8", which needs a GPU; expected "bf16"')
    found = torch.cuda.get_device_capability()
    if found < CAPABLE:
        raise UserError(
            'machine.precision: found "fp8", which needs a GPU of compute capability '
            f'{".".join(map(str, CAPABLE))}, this one has {".".join(map(str, found))}; expected "bf16"'
        )
    if find_spec("torchao") is None:
        raise UserError(
            'machine.precision: found "fp8", which needs torchao; install it with: '
            "pip install archwright[fp8]"
        )


class Float8Products(TorchFunctionMode):
    """While it is entered, `F.linear` scales x and W to 8 bits (e4m3), and gradients too (e5m2), each by one
    number, and multiplies those; what is added up stays wide.

    Maps to `spared` outputs, which is the head, are left as they are, and so are those with a side that the
    units do not take. Source: Micikevicius et al., 2022, FP8 Formats for Deep Learning.

    Args:
        emulated: round to 8 bits, but multiply wider numbers, on any device.
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
        given = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        d_out, d_in = weight.shape
        key = (d_out, d_in, bias is not None)
        if key not in self._maps:
            self._maps[key] = _float8_map(*key, emulated=self.emulated)
        product: Tensor = torch.func.functional_call(
            self._maps[key], given, (x.to(torch.bfloat16),)
        )
        return product


def _float8_map(d_out: int, d_in: int, bias: bool, *, emulated: bool) -> nn.Module:
    """Return torchao's linear map of a shape, without weights of its own."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    plain = nn.Sequential(nn.Linear(d_in, d_out, bias=bias, device="meta"))
    made: nn.Module = convert_to_float8_training(plain, config=Float8LinearConfig(emulate=emulated))
    return made.get_submodule("0")
