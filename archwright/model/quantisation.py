"""Weights in 8 or 4 bits, for reading models whose speed is that of the memory."""

from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from archwright.parts.embeddings import Head
from archwright.parts.linear import Linear, linear
from archwright.spec.errors import UserError

Weights = Literal["int8", "int4"]
M = TypeVar("M", bound=nn.Module)
GROUP = 32
"""Inputs with one scale and one offset, in 4 bits."""
FEW = 16
"""Most rows of x for which the product reads 8-bit weights; more rows are worth widening them."""


@torch.no_grad()
def quantise(model: M, weights: Weights) -> M:
    """Replace the weights of a model's linear maps by integers; the model can only be read afterwards.

    int8: w = scale_r q, with one scale for each row r of W and |q| <= 127. int4: w = scale_g q + offset_g, with q from
    0 to 15, for groups of 32 inputs. Embeddings, norms, biases, convolutions and stacks of experts keep their numbers;
    a head that shares the table of the embedding has integers of its own. Products round x to bfloat16.

    A CPU uses torch's operators, a GPU those of torchao, which must be installed.

    Raises:
        UserError: no map can be quantised, or a GPU is without torchao.
    """
    maps = [m for m in model.modules() if isinstance(m, Linear) and _is_plain(m)]
    if not maps:
        raise UserError(f"weights: found {weights}; the model has no plain linear map to quantise")
    if next(model.parameters()).device.type == "cuda":
        _with_torchao(model, weights, set(map(id, maps)))
        return model
    for m in maps:
        fits = m.weight.shape[1] % GROUP == 0 and m.weight.shape[0] % 16 == 0
        m.product = _Int4(m.weight) if weights == "int4" and fits else _Int8(m.weight)
        m.can_join = False
        # Keeps its shape and dtype, but no memory; whatever reads it by mistake gets no number.
        gone = m.weight.new_full((), torch.nan).expand(m.weight.shape)
        m.weight = nn.Parameter(gone, requires_grad=False)
    return model


def _is_plain(m: Linear) -> bool:
    """True for one matrix with the usual product."""
    return type(m) in (Linear, Head) and m.product is linear and not m.reads_weight


class _Int8:
    """x W^T + b with W = scale q, q [d_out, d_in], scale [d_out, 1] in bfloat16."""

    def __init__(self, weight: Tensor) -> None:
        scale = weight.float().abs().amax(1, keepdim=True).clamp_(min=1e-30) / 127
        self.scale = scale.bfloat16()
        self.q = (weight.float() / self.scale.float()).round_().clamp_(-127, 127).to(torch.int8)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.numel() // x.shape[-1]
        if rows > FEW:
            y = linear(x, self.q.to(x.dtype), None) * self.scale[:, 0].to(x.dtype)
        else:
            # [..., d_in] -> [rows, d_in]; [rows, d_out] -> [..., d_out]
            flat = x.reshape(rows, -1).bfloat16().contiguous()
            y = torch.ops.aten._weight_int8pack_mm(flat, self.q, self.scale[:, 0])
            y = y.view(*x.shape[:-1], -1).to(x.dtype)  # [..., d_out]
        return y if bias is None else y + bias.to(y.dtype)


class _Int4:
    """x W^T + b with W = scale (q - 8) + middle for groups of inputs, q packed for torch's operator."""

    def __init__(self, weight: Tensor) -> None:
        groups = weight.float().unflatten(1, (-1, GROUP))  # [d_out, groups, GROUP]
        low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
        scale = ((high - low) / 15).clamp_(min=1e-30).bfloat16()
        middle = (low + 8 * scale.float()).bfloat16()
        q = ((groups - middle.float()) / scale.float() + 8).round_().clamp_(0, 15)
        # [groups, d_out, 2]
        self.scales = torch.cat((scale, middle), 2).transpose(0, 1).contiguous()
        # [d_out, d_in]
        self.q = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q.flatten(1).int(), 2)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # [..., d_in] -> [rows, d_in]; [rows, d_out] -> [..., d_out]
        flat = x.reshape(-1, x.shape[-1]).bfloat16().contiguous()
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(flat, self.q, GROUP, self.scales)
        y = y.view(*x.shape[:-1], -1).to(x.dtype)  # [..., d_out]
        return y if bias is None else y + bias.to(y.dtype)


def _with_torchao(model: nn.Module, weights: Weights, maps: set[int]) -> None:
    """Quantise maps by torchao, whose tensors bring their own products."""
    try:
        from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_
    except ImportError:
        raise UserError(
            f"weights: found {weights} on a GPU, which needs torchao; pip install torchao, or take --device cpu"
        ) from None
    config = Int8WeightOnlyConfig() if weights == "int8" else Int4WeightOnlyConfig(group_size=GROUP)
    quantize_(model, config, filter_fn=lambda m, name: id(m) in maps)
