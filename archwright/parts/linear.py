"""The two weights everything is made of: a linear map and a table of embeddings."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from archwright.parts.leaves import LeafCosts, leaf


class Linear(nn.Module):
    """y = x W^T + b, with W of shape [d_out, d_in] and an optional bias b of shape [d_out].

    Args:
        is_residual_output: the map writes into the residual stream; some initialisations scale it down.
        deepnorm: whether DeepNorm scales its initial values; not those of queries and keys, gates of experts, and
            latents that are normed.

    Attributes:
        active_fraction: the share of the weight that a token is multiplied with.
        init_gain: what the weight an initialisation draws is multiplied by (DeepNorm).
        score_gain: of a map of queries, what their scores are multiplied by beside head_dim^-0.5: 1 where that is their
            scale, sqrt(head_dim) where they have none. Some initialisations divide by it.
        is_lm_head: the map is the head.
        product: function that computes x W^T + b.
        can_join: whether `fused_linears` may compute it with others from its weight alone.
        num_blocks: equal blocks of d_out, or of d_in where it writes into the stream, that stay whole where devices
            share the map: heads; 1: all of it on each device; None: of one column, or row, each.
    """

    score_gain = 1.0
    is_lm_head = False
    active_fraction = 1.0
    product: Callable[[Tensor, Tensor, Tensor | None], Tensor] = staticmethod(F.linear)
    can_join = True
    num_blocks: int | None = None

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        bias: bool = False,
        is_residual_output: bool = False,
        deepnorm: bool = True,
    ) -> None:
        super().__init__()
        self.d_in, self.d_out, self.is_residual_output = d_in, d_out, is_residual_output
        self.deepnorm = deepnorm
        self.init_gain = 1.0
        self.weight = nn.Parameter(torch.empty(d_out, d_in))
        self.bias = nn.Parameter(torch.zeros(d_out)) if bias else None

    @property
    def cut(self) -> Literal["colwise", "rowwise"] | None:
        """How devices share the map: by columns of y, or of x where it writes into the stream; None: not at all."""
        if self.num_blocks == 1:
            return None
        return "rowwise" if self.is_residual_output else "colwise"

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        return self.product(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.d_in} -> {self.d_out}" + (", bias" if self.bias is not None else "")


class GroupedLinear(Linear):
    """y_i = x_i W[e_i]^T + b[e_i]: a stack of maps, W of shape [number, d_out, d_in] and b of
    [number, d_out], with a map e_i for each row; rows of one map stand together.

    Args:
        active_fraction: the share of the maps that a token goes through.
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

    def forward(  # type: ignore[override]
        self,
        x: Float[Tensor, "rows d_in"],
        which: Int[Tensor, " rows"],
        ends: Int[Tensor, " number"],
    ) -> Float[Tensor, "rows d_out"]:
        """Return each row's y; `which` is the map of each row, `ends` where the rows of each map end."""
        x = to_autocast_dtype(x)
        y = grouped_linear(x, self.weight.to(x.dtype), ends)
        return y if self.bias is None else y + self.bias.to(y.dtype)[which]

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]} x ({super().extra_repr()})"


class Embedding(nn.Module):
    """x = W[token], with a table W of shape [num_rows, dim].

    Attributes:
        holds_tokens: whether rows are of tokens, and not of positions or distances.
    """

    holds_tokens = False

    def __init__(self, num_rows: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, dim))
        self.bias: nn.Parameter | None = None

    def forward(self, index: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch dim"]:
        return F.embedding(index, self.weight)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]} x {self.weight.shape[1]}"


class TokenTable(Embedding):
    """A table of token ids, which every row of a batch has in its own: so several models' tables are one."""

    holds_tokens = True


def set_blocks(number: int, *maps: Linear | None) -> None:
    """Let devices share maps by `number` equal blocks, such as heads; 1: not at all."""
    for m in maps:
        if m is not None:
            m.num_blocks = number


def project(
    x: Float[Tensor, "*batch d_in"], maps: Sequence[Linear]
) -> list[Float[Tensor, "*batch _"]]:
    """Apply several maps to x, which is cast for autocast once for all of them."""
    x = to_autocast_dtype(x)
    return [m(x) for m in maps]


def fused_linears(
    x: Float[Tensor, "*batch d_in"], maps: Sequence[Linear]
) -> list[Float[Tensor, "*batch _"]]:
    """Apply several maps to the same x as one product, [W_1; W_2; ...] x, cut up afterwards.

    One large product keeps a device busier than several small ones, at the price of a copy of the
    weights. A map without a bias adds zeros. One that is not a plain product is computed by itself.
    """
    if len(maps) < 2 or not all(m.can_join for m in maps):
        return [m(x) for m in maps]
    biases = [m.weight.new_zeros(m.d_out) if m.bias is None else m.bias for m in maps]
    bias = torch.cat(biases) if any(m.bias is not None for m in maps) else None
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
    if x.is_meta:  # where there are no numbers to say which rows are whose
        return F.linear(x, weight[0])
    # What torch's grouped product asks for, on a CPU too: no float64, and rows of whole 16 bytes. While
    # compiling it knows the shapes of bfloat16 alone (torch 2.13).
    whole = all(n * x.element_size() % 16 == 0 for n in weight.shape[1:])
    known = x.dtype == torch.bfloat16 or not torch.compiler.is_compiling()
    if x.dtype != torch.float64 and whole and known:
        return F.grouped_mm(x, weight.mT, offs=ends)
    sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
    parts = zip(x.split(sizes), weight.unbind(), strict=True)
    return torch.cat([F.linear(part, matrix) for part, matrix in parts])


def to_autocast_dtype(x: Tensor) -> Tensor:
    """Cast to the dtype that autocast gives matrix products; maps that share x would each cast it again."""
    kind = x.device.type
    if x.dtype != torch.float32 or not torch.amp.is_autocast_available(kind):
        return x
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x
