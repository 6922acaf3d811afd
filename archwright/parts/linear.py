"""Linear maps and embedding tables, the building blocks of all parts."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from archwright.parts.leaves import LeafCosts, leaf

SLICE = 2**19
"""Numbers of a weight that are widened at a time, to stay in the CPU's cache."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b.

    On a CPU without 16-bit products, four rows or more of such numbers are multiplied in float32, up to seven times as
    fast as torch's own product. Passes outside inference mode and autocast take torch's.
    """
    if (
        x.itemsize != 2
        or x.device.type != "cpu"
        or x.dtype != weight.dtype
        or x.numel() < 4 * x.shape[-1]
        or not torch.is_inference_mode_enabled()  # traced passes stand for other devices
        or torch.is_autocast_enabled("cpu")
        or multiplies(x.dtype)
    ):
        return F.linear(x, weight, bias)
    x32, parts = x.float(), weight.split(max(1, SLICE // weight.shape[1]))
    y = torch.cat([F.linear(x32, part.float()) for part in parts], -1)
    return (y if bias is None else y + bias.float()).to(x.dtype)


@cache
def multiplies(dtype: torch.dtype) -> bool:
    """True if this CPU has instructions for products of 16-bit numbers."""
    name = "bf16" if dtype == torch.bfloat16 else "fp16"
    return bool(getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported")())


class Linear(nn.Linear):
    """y = x W^T + b, with W of shape [d_out, d_in] and an optional bias b of shape [d_out].

    Args:
        is_residual_output: True if y is added to the residual stream; some initialisations scale this map down.
        deepnorm: True if DeepNorm scales the initial weight; False for maps of queries and keys, gates of experts, and
            normalised latents.

    Attributes:
        active_fraction: share of the weight that is used for one token.
        init_gain: factor of the initial weight (DeepNorm).
        score_gain: scale of attention scores times sqrt(head_dim), for maps of queries: 1 with the usual scale,
            sqrt(head_dim) without a scale. Some initialisations divide by it.
        is_lm_head: True for the map to logits.
        product: function that computes x W^T + b.
        can_join: True if `fused_linears` may compute the map from its weight and bias.
        reads_weight: True if a mixer reads the weight itself, so that it must stay a matrix.
        num_blocks: number of equal blocks of d_out (d_in for residual outputs) that tensor parallelism does not split,
            such as heads. 1: the map is replicated; None: any column (row) is a block.
    """

    score_gain = 1.0
    is_lm_head = False
    active_fraction = 1.0
    product: Callable[[Tensor, Tensor, Tensor | None], Tensor] = staticmethod(linear)
    can_join = True
    reads_weight = False
    num_blocks: int | None = None
    weight: nn.Parameter
    bias: nn.Parameter | None  # type: ignore[assignment]  # torch's own may be None, too

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        bias: bool = False,
        is_residual_output: bool = False,
        deepnorm: bool = True,
    ) -> None:
        super().__init__(d_in, d_out, bias=bias)
        self.d_in, self.d_out, self.is_residual_output = d_in, d_out, is_residual_output
        self.deepnorm = deepnorm
        self.init_gain = 1.0

    @property
    def cut(self) -> Literal["colwise", "rowwise"] | None:
        """Split of tensor parallelism: by columns of y, or of x for residual outputs; None: replicated."""
        if self.num_blocks == 1:
            return None
        return "rowwise" if self.is_residual_output else "colwise"

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        return self.product(x, self.weight, self.bias)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weight from N(0, 1 / d_in) for a map on its own; `build` draws with `Init` instead."""
        reset_weight(self.weight, self.bias, self.weight.shape[-1] ** -0.5)

    def extra_repr(self) -> str:
        return f"{self.d_in} -> {self.d_out}" + (", bias" if self.bias is not None else "")


class GroupedLinear(Linear):
    """y_i = x_i W[e_i]^T + b[e_i]: a stack of maps, and one map e_i for each row i.

    Shapes: W [number, d_out, d_in], b [number, d_out]. Rows are sorted by map.

    Args:
        active_fraction: share of the maps that is used for one token.
    """

    def __init__(
        self,
        number: int,
        d_in: int,
        d_out: int,
        *,
        active_fraction: float,
        bias: bool = False,
        is_residual_output: bool = False,
    ) -> None:
        super().__init__(d_in, d_out, is_residual_output=is_residual_output)
        self.active_fraction = active_fraction
        self.weight = nn.Parameter(torch.empty(number, d_out, d_in))
        self.bias = nn.Parameter(torch.zeros(number, d_out)) if bias else None
        self.reset_parameters()

    def forward(  # type: ignore[override]
        self,
        x: Float[Tensor, "rows d_in"],
        which: Int[Tensor, " rows"],
        ends: Int[Tensor, " number"],
    ) -> Float[Tensor, "rows d_out"]:
        """Return y; `which` is the map of each row, `ends` the end of each map's rows."""
        x = to_autocast_dtype(x)
        y = grouped_linear(x, self.weight.to(x.dtype), ends)
        return y if self.bias is None else y + self.bias.to(y.dtype)[which]

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]} x ({super().extra_repr()})"


class Embedding(nn.Module):
    """x = W[token], with a table W of shape [num_rows, dim].

    Attributes:
        holds_tokens: True if rows belong to tokens, not to positions or distances.
    """

    holds_tokens = False

    def __init__(self, num_rows: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, dim))
        self.bias: nn.Parameter | None = None
        self.reset_parameters()

    def forward(self, index: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch dim"]:
        return F.embedding(index, self.weight)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the table from N(0, 1 / dim) for a table on its own; `build` draws with `Init` instead."""
        reset_weight(self.weight, self.bias, self.weight.shape[-1] ** -0.5)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]} x {self.weight.shape[1]}"


class TokenTable(Embedding):
    """Table of token ids or token types, in addition to the token embedding."""

    holds_tokens = True


def reset_weight(weight: Tensor, bias: Tensor | None, std: float) -> None:
    """Draw a weight from N(0, std^2) and set the bias to 0; a tensor on the meta device draws nothing."""
    if not weight.is_meta:
        weight.normal_(0, std)
    if bias is not None:
        bias.zero_()


def set_blocks(number: int, *maps: Linear | None) -> None:
    """Set the `num_blocks` of maps for tensor parallelism, such as the number of heads."""
    for m in maps:
        if m is not None:
            m.num_blocks = number


def project(
    x: Float[Tensor, "*batch d_in"], maps: Sequence[Linear]
) -> list[Float[Tensor, "*batch _"]]:
    """Apply several maps to x, with one cast for autocast."""
    x = to_autocast_dtype(x)
    return [m(x) for m in maps]


def can_join(maps: Sequence[nn.Module]) -> bool:
    """True if the maps may be one product; an adapter around a map, such as LoRA's, must be called."""
    return all(isinstance(m, Linear) and m.can_join for m in maps)


def fused_linears(
    x: Float[Tensor, "*batch d_in"], maps: Sequence[Linear]
) -> list[Float[Tensor, "*batch _"]]:
    """Apply several maps to x as one product [W_1; W_2; ...] x.

    One large product uses a device better than several small ones, but copies the weights. A missing bias is 0. If a
    map is not a plain product, all maps are computed separately.
    """
    if len(maps) < 2 or not can_join(maps):
        return [m(x) for m in maps]
    biases = [m.weight.new_zeros(m.d_out) if m.bias is None else m.bias for m in maps]
    bias = torch.cat(biases) if any(m.bias is not None for m in maps) else None
    # [..., sum of d_out]
    y = maps[0].product(x, torch.cat([m.weight for m in maps]), bias)
    return list(y.split([m.d_out for m in maps], dim=-1))


def _grouped_costs(x: Tensor, weight: Tensor, ends: Tensor) -> LeafCosts:
    """Return the costs of a product for each expert, at balanced routing: as many experts as rows at most."""
    number, d_out, d_in = weight.shape
    out = torch.empty(len(x), d_out, dtype=x.dtype, device="meta")
    numbers = x.numel() + out.numel() + min(number, len(x)) * d_out * d_in
    flops = 2.0 * len(x) * d_in * d_out
    return LeafCosts(flops, numbers * x.element_size(), out, (x, weight), True, True)


@leaf(_grouped_costs)
def grouped_linear(
    x: Float[Tensor, "rows d_in"],
    weight: Float[Tensor, "number d_out d_in"],
    ends: Int[Tensor, " number"],
) -> Float[Tensor, "rows d_out"]:
    """Return x_i W[e]^T for rows i from ends[e - 1] to ends[e]."""
    if x.is_meta:  # no values of `ends`
        return F.linear(x, weight[0])
    # torch's grouped product requires rows of multiples of 16 bytes, and does not support float64. The
    # compiler infers its shapes only in bfloat16 (torch 2.13).
    aligned = all(n * x.element_size() % 16 == 0 for n in weight.shape[1:])
    supported = x.dtype == torch.bfloat16 or not torch.compiler.is_compiling()
    if x.dtype != torch.float64 and aligned and supported:
        return F.grouped_mm(x, weight.mT, offs=ends)
    sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
    parts = zip(x.split(sizes), weight.unbind(), strict=True)
    return torch.cat([F.linear(part, matrix) for part, matrix in parts])


def to_autocast_dtype(x: Tensor) -> Tensor:
    """Cast x to the dtype of autocast, once for all maps of x."""
    kind = x.device.type
    if x.dtype != torch.float32 or not torch.amp.is_autocast_available(kind):
        return x
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x
