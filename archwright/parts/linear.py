"""The two weights everything is made of: a linear map and a table of embeddings."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


class Linear(nn.Module):
    """y = x W^T + b, with W of shape [d_out, d_in] and an optional bias b of shape [d_out].

    Args:
        ends_branch: the map writes into the residual stream; some initialisations scale it down.

    Attributes:
        gain: what the weight an initialisation draws is multiplied by (DeepNorm).
        reads_out: the map is the head.
    """

    reads_out = False

    def __init__(
        self, d_in: int, d_out: int, *, bias: bool = False, ends_branch: bool = False
    ) -> None:
        super().__init__()
        self.d_in, self.d_out, self.ends_branch = d_in, d_out, ends_branch
        self.gain = 1.0
        self.weight = nn.Parameter(torch.empty(d_out, d_in))
        self.bias = nn.Parameter(torch.zeros(d_out)) if bias else None

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.d_in} -> {self.d_out}" + (", bias" if self.bias is not None else "")


class Embedding(nn.Module):
    """x = W[token], with a table W of shape [num_rows, dim]."""

    def __init__(self, num_rows: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, dim))

    def forward(self, index: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch dim"]:
        return F.embedding(index, self.weight)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]} x {self.weight.shape[1]}"


def project(
    x: Float[Tensor, "*batch d_in"], maps: Sequence[Linear]
) -> list[Float[Tensor, "*batch _"]]:
    """Apply several maps to the same x as one product, [W_1; W_2; ...] x, cut up afterwards.

    One large product keeps a device busier than several small ones, at the price of a copy of the
    weights. A map without a bias adds zeros.
    """
    if len(maps) < 2:
        return [m(x) for m in maps]
    biases = [m.weight.new_zeros(m.d_out) if m.bias is None else m.bias for m in maps]
    bias = torch.cat(biases) if any(m.bias is not None for m in maps) else None
    y = F.linear(x, torch.cat([m.weight for m in maps]), bias)
    return list(y.split([m.d_out for m in maps], dim=-1))


def narrow(x: Tensor) -> Tensor:
    """Cast to the dtype that autocast gives matrix products; maps that share x would each cast it again."""
    kind = x.device.type
    if x.dtype != torch.float32 or not torch.amp.is_autocast_available(kind):
        return x
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x
