"""Muon: orthogonalized momentum, for the matrices inside a model."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from archwright.optim.shards import Shards, WholeMatrices

Method = Literal["polar", "jordan"]
Quintic = tuple[float, float, float]

JORDAN: Quintic = (3.4445, -4.7750, 2.0315)
"""Steep at zero; leaves singular values between 0.7 and 1.2. Jordan et al., 2024, "Muon"."""

POLAR: tuple[Quintic, ...] = (
    (7.3625, -20.7434, 15.1606),
    (2.9175, -2.1824, 0.4755),
    (2.0463, -1.4295, 0.3934),
    (1.875, -1.25, 0.375),
)
"""Optimal quintic of each step: closest to 1 on the image of [0.03, 1] under the previous steps. The image after three
steps is 0.963 to 1.037. Amsel et al., 2025, "The Polar Express", arXiv 2505.16932."""

BATCH = 2**25
"""Elements that a rank orthogonalizes at once; bounds the memory of a step."""


class Muon(WholeMatrices):
    """W <- (1 - lr weight_decay) W - lr 0.2 sqrt(max(d_out, d_in)) U V^T, with the SVD M = U S V^T.

    M is the momentum, M <- mu M + (1 - mu) G; with Nesterov momentum, (1 - mu) G + mu M replaces M in the SVD. U V^T is
    the result of `steps` iterations in `dtype`, by `orthogonal` (method "polar") or `newton_schulz` ("jordan"). The
    factor 0.2 sqrt(max(d_out, d_in)) gives updates a root mean square of 0.2, as in AdamW, so both optimizers share
    learning rates. A parameter [*, d_out, d_in] is a stack of matrices. Matrices of one shape form a batch.

    Raises:
        ValueError: a parameter has fewer than two dimensions.

    Source: Jordan et al., 2024, "Muon"; Liu et al., 2025, arXiv 2502.16982, section 2.2.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        method: Method = "polar",
        steps: int = 3,
        weight_decay: float = 0.1,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "method": method,
            "steps": steps,
            "weight_decay": weight_decay,
            "dtype": str(dtype).removeprefix("torch."),  # plain data, as the rest of the state
        }
        super().__init__(params, defaults)
        for parameter in (p for group in self.param_groups for p in group["params"]):
            if parameter.ndim < 2:
                raise ValueError(
                    f"Muon takes matrices; found a parameter of shape {list(parameter.shape)}, "
                    "which AdamW can take"
                )

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update the parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                directions = self._directions(group, parameters)
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                for indices in _batches(parameters, self.shards):
                    batch = [parameters[i] for i in indices]
                    _update(batch, [directions[i] for i in indices], group, self.shards)
        return loss

    def _directions(self, group: dict[str, Any], parameters: list[Tensor]) -> list[Tensor]:
        """Update the momenta with the gradients; return the directions to orthogonalize."""
        for p in parameters:
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        momenta = [self.state[p]["momentum_buffer"] for p in parameters]
        gradients = [p.grad for p in parameters if p.grad is not None]
        # M <- mu M + (1 - mu) G
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        if not group["nesterov"]:
            return momenta
        # (1 - mu) G + mu M
        return list(torch._foreach_lerp(gradients, momenta, group["momentum"]))


def orthogonal(x: Float[Tensor, "*batch m n"], steps: int) -> Float[Tensor, "*batch m n"]:
    """Return approximately U V^T of matrices with SVD U S V^T.

    X <- (a + b G + c G²) X with G = X X^T; for tall matrices X (a + b G + c G²) with G = X^T X. Coefficients differ
    between steps. The start is X / |G²|^(1/4), with the Frobenius norm |.|, instead of Jordan's X / |X|. For most
    gradients, |G²|^(1/4) is at most 1.1 times the largest singular value, and |X| is two to four times. This saves two
    of five steps, and the first step needs G² anyway.
    """
    norm = _norm(x)
    # The last coefficients keep singular values at 1, for any number of further steps.
    for i, (a, b, c) in enumerate([*POLAR, *[POLAR[-1]] * steps][:steps]):
        gram = _gram(x)
        if i == 0:
            gram = gram / norm**2
        square = gram @ gram
        if i == 0:
            bound = 1.01 * torch.linalg.matrix_norm(square, keepdim=True) ** 0.25
            bound = bound.clamp(min=1e-2)  # smaller only if X = 0
            # The scale of X goes into the small matrices, which saves a pass over X.
            scale = 1 / (norm * bound)
            gram, square = gram * (scale / bound**2), square * (scale / bound**4)
        factor = gram.mul_(b).add_(square, alpha=c)
        factor.diagonal(dim1=-2, dim2=-1).add_(a * scale[..., 0] if i == 0 else a)
        x = x @ factor if _is_tall(x) else factor @ x
    return x


def newton_schulz(x: Float[Tensor, "*batch m n"], steps: int) -> Float[Tensor, "*batch m n"]:
    """Return U S' V^T of matrices with SVD U S V^T, with S' near 1, by Jordan's iteration.

    X <- a X + b G X + c G² X with G = X X^T; for tall matrices a X + b X G + c X G² with G = X^T X. The start is
    X / |X|, with the Frobenius norm |.|.
    """
    x = x / _norm(x)
    a, b, c = JORDAN
    for _ in range(steps):
        gram = _gram(x)
        # b G + c G²
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, *((x, factor) if _is_tall(x) else (factor, x)), beta=a)
    return x


def _gram(x: Tensor) -> Tensor:
    """Return G = X X^T, or X^T X for tall X: the smaller of the two, without a copy of X."""
    return x.mT @ x if _is_tall(x) else x @ x.mT


def _is_tall(x: Tensor) -> bool:
    return x.shape[-2] > x.shape[-1]


def _norm(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.matrix_norm(x, keepdim=True)
    return norm.clamp(min=1e-7)


def _batches(parameters: list[Tensor], shards: Shards) -> Iterator[list[int]]:
    """Yield indices of parameters of one shape and device, in batches of limited size."""
    places: dict[tuple[torch.Size, torch.device], list[int]] = defaultdict(list)
    for i, p in enumerate(parameters):
        places[shards.shape(p), p.device].append(i)
    for (shape, _), indices in places.items():
        size = max(1, BATCH // max(1, shape.numel())) * shards.num_batches
        yield from (indices[i : i + size] for i in range(0, len(indices), size))


def _update(
    parameters: list[Tensor], directions: list[Tensor], group: dict[str, Any], shards: Shards
) -> None:
    """Subtract the orthogonalized directions from parameters of one shape."""

    def orthogonalized(batch: Tensor) -> Tensor:
        # [number, *, m, n] -> [number * stack, m, n]
        return METHODS[group["method"]](batch.flatten(0, -3), group["steps"]).view_as(batch)

    shape, dtype = shards.shape(parameters[0]), getattr(torch, group["dtype"])
    scale = 0.2 * math.sqrt(max(shape[-2:]))
    updates = shards.mapped(parameters, directions, orthogonalized, dtype)
    for p, update in zip(parameters, updates, strict=True):
        p.add_(update, alpha=-group["lr"] * scale)


METHODS: dict[Method, Callable[[Tensor, int], Tensor]] = {
    "polar": orthogonal,
    "jordan": newton_schulz,
}
