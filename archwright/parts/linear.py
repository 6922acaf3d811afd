"""The two weights everything is made of: a linear map and a table of embeddings."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


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
        transposed_backward: whether its backward pass may transpose a factor beforehand where it is compiled, which
            some compilers do wrongly.
        can_join: whether `fused_linears` may compute it with others from its weight alone.
        num_blocks: equal blocks of d_out, or of d_in where it writes into the stream, that stay whole where devices
            share the map: heads; 1: all of it on each device; None: of one column, or row, each.
    """

    score_gain = 1.0
    is_lm_head = False
    active_fraction = 1.0
    transposed_backward = False
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
        return linear(x, self.weight, self.bias, transposed_backward=self.transposed_backward)

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


def linear(
    x: Float[Tensor, "*batch d_in"],
    weight: Float[Tensor, "d_out d_in"],
    bias: Float[Tensor, " d_out"] | None = None,
    *,
    transposed_backward: bool = False,
) -> Float[Tensor, "*batch d_out"]:
    """Return x W^T + b; compiled for bfloat16 on a CPU, with a backward pass of its own if that is asked for."""
    # Square maps are no faster by it on two threads, or slower.
    if transposed_backward and weight.shape[0] != weight.shape[1] and _gains_by_transposing(x):
        y: Tensor = _Product.apply(*_narrowed(x, weight, bias))  # type: ignore[no-untyped-call]
        return y
    return F.linear(x, weight, bias)


def linears_joint_backward(
    x: Float[Tensor, "*batch d_in"], maps: Sequence[Linear]
) -> list[Float[Tensor, "*batch _"]]:
    """Apply several maps to the same x; compiled for bfloat16 on a CPU, with one backward pass for all of them.

    Maps wider than x stay apart: one of them is product enough for all cores.
    """
    none_widens = all(m.transposed_backward and m.d_out <= m.d_in for m in maps)
    if len(maps) > 1 and none_widens and _gains_by_transposing(x):
        x, *given = _narrowed(x, *(m.weight for m in maps), *(m.bias for m in maps))
        return list(_Products.apply(x, len(maps), *given))  # type: ignore[no-untyped-call]
    return [m(x) for m in maps]


def _gains_by_transposing(x: Tensor) -> bool:
    """Whether gradients of weights are faster from a factor that is transposed beforehand."""
    if not (torch.compiler.is_compiling() and torch.is_grad_enabled()):
        return False
    on_cpu = x.device.type == "cpu"
    return on_cpu and to_autocast_dtype(x).dtype == torch.bfloat16 and x[..., 0].numel() % 32 == 0


def _narrowed(x: Tensor, *parts: Tensor | None) -> list[Any]:
    x = to_autocast_dtype(x)
    return [x, *(None if part is None else part.to(x.dtype) for part in parts)]


class _Product(torch.autograd.Function):
    """x W^T + b, and the gradient of W as (x^T g)^T or g^T x: what is transposed is the narrower one.

    oneDNN transposes a factor on its way at half the speed of other products. Rows that begin an odd number of
    cache lines apart do not meet on the same lines of the cache. It may read what lies between them, where
    the columns are no multiple of 32.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        # [rows, d_in] and [rows, d_out]
        rows, grad_rows = x.flatten(0, -2), grad.flatten(0, -2)
        if x.shape[-1] <= grad.shape[-1]:
            grad_weight = (_apart(rows.t()) @ grad_rows).t().contiguous()
        else:
            grad_weight = _apart(grad_rows.t()) @ rows
        return grad @ weight, grad_weight, grad_rows.sum(0) if ctx.biased else None


class _Products(torch.autograd.Function):
    """x W_i^T + b_i for several i, and gradients as those of [W_1; W_2; ...]: one product is cut between cores
    better than several narrow ones, and x is transposed once, as in `_Product`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, number: int, *given: Tensor | None) -> tuple[Tensor, ...]:
        weights, biases = given[:number], given[number:]
        ctx.save_for_backward(x, *weights)
        ctx.biased = [bias is not None for bias in biases]
        return tuple(
            F.linear(x, w, b) for w, b in zip(weights, biases, strict=True) if w is not None
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        widths, grad = [len(w) for w in weights], torch.cat(grads, -1)
        # [rows, sum of d_out]
        grad_rows = grad.flatten(0, -2)
        # [d_in, sum of d_out], cut up by map
        grad_weights = (_apart(x.flatten(0, -2).t()) @ grad_rows).split(widths, -1)
        grad_biases = zip(ctx.biased, grad_rows.split(widths, -1), strict=True)
        return (
            grad @ torch.cat(weights),
            None,
            *(part.t().contiguous() for part in grad_weights),
            *(part.sum(0) if biased else None for biased, part in grad_biases),
        )


def _apart(x: Tensor) -> Tensor:
    """Return a copy whose rows begin an odd number of cache lines of 64 bytes apart."""
    in_line = 64 // x.element_size()
    lines = -(-x.shape[1] // in_line) | 1
    out = torch.empty_strided(x.shape, (lines * in_line, 1), dtype=x.dtype, device=x.device)
    return out.copy_(x)


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
    transposed = all(m.transposed_backward for m in maps)
    y = linear(x, torch.cat([m.weight for m in maps]), bias, transposed_backward=transposed)
    return list(y.split([m.d_out for m in maps], dim=-1))


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
