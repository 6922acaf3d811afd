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
"""For each step the quintic that comes closest to 1 on what its forerunner leaves of [0.03, 1];
three leave 0.963 to 1.037. Amsel et al., 2025, "The Polar Express", arXiv 2505.16932."""

BATCH = 2**25
"""Elements that a process makes orthogonal at once, which bounds the memory of a step."""


class Muon(WholeMatrices):
    """W <- (1 - lr weight_decay) W - lr 0.2 sqrt(max(d_out, d_in)) U V^T, where U S V^T = SVD of M.

    M is the momentum, M <- mu M + (1 - mu) G, or with Nesterov's look ahead (1 - mu) G + mu M.
    U V^T comes from `steps` of an iteration in `dtype`: "polar" is `orthogonal`, "jordan" is
    `newton_schulz`. The factor makes its root mean square 0.2, as AdamW's updates have, so that
    both take the same learning rates. Matrices of one shape are worked on together; a parameter
    [*, d_out, d_in] is a stack of them.

    Raises:
        ValueError: a parameter that is no matrix.

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
                for indices in _alike(parameters, self.shards):
                    some = [parameters[i] for i in indices]
                    _move(some, [directions[i] for i in indices], group, self.shards)
        return loss

    def _directions(self, group: dict[str, Any], parameters: list[Tensor]) -> list[Tensor]:
        """Take the gradients into the momenta, and return where to go."""
        for p in parameters:
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        momenta = [self.state[p]["momentum_buffer"] for p in parameters]
        gradients = [p.grad for p in parameters if p.grad is not None]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        if not group["nesterov"]:
            return momenta
        return list(torch._foreach_lerp(gradients, momenta, group["momentum"]))


def orthogonal(x: Float[Tensor, "*batch m n"], steps: int) -> Float[Tensor, "*batch m n"]:
    """Return approximately U V^T of matrices with SVD U S V^T.

    X <- (a + b G + c G²) X, G = X X^T, or from the right where that side is shorter, with coefficients of
    their own in each step. It starts from X / |G²|^(1/4), |.| the Frobenius norm, and not from Jordan's
    X / |X|: this bound on the largest singular value is at most a tenth above it for most gradients, that one
    two to four times. The first step has the product at hand, so two steps of five are saved.
    """
    norm = _norm(x)
    # Steps that have no more to do keep to the last coefficients.
    for i, (a, b, c) in enumerate([*POLAR, *[POLAR[-1]] * steps][:steps]):
        gram = _gram(x)
        if i == 0:
            gram = gram / norm**2
        square = gram @ gram
        if i == 0:
            bound = 1.01 * torch.linalg.matrix_norm(square, keepdim=True) ** 0.25
            bound = bound.clamp(min=1e-2)  # only 0 is smaller
            # All scaling is done here, where matrices are small, and none of X, which would be read once more.
            scale = 1 / (norm * bound)
            gram, square = gram * (scale / bound**2), square * (scale / bound**4)
        factor = gram.mul_(b).add_(square, alpha=c)
        factor.diagonal(dim1=-2, dim2=-1).add_(a * scale[..., 0] if i == 0 else a)
        x = x @ factor if _stands(x) else factor @ x
    return x


def newton_schulz(x: Float[Tensor, "*batch m n"], steps: int) -> Float[Tensor, "*batch m n"]:
    """Return U S' V^T of matrices with SVD U S V^T, S' around 1, the way Jordan does.

    X <- a X + b G X + c G² X, G = X X^T, or from the right where that side is shorter, starting from X / |X|,
    |.| the Frobenius norm.
    """
    x = x / _norm(x)
    a, b, c = JORDAN
    for _ in range(steps):
        gram = _gram(x)
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, *((x, factor) if _stands(x) else (factor, x)), beta=a)
    return x


def _gram(x: Tensor) -> Tensor:
    """Return X X^T, or X^T X where X stands, so that nothing has to be laid down."""
    return x.mT @ x if _stands(x) else x @ x.mT


def _stands(x: Tensor) -> bool:
    return x.shape[-2] > x.shape[-1]


def _norm(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.matrix_norm(x, keepdim=True)
    return norm.clamp(min=1e-7)


def _alike(parameters: list[Tensor], shards: Shards) -> Iterator[list[int]]:
    """Yield places of parameters that have one shape, in batches."""
    places: dict[tuple[torch.Size, torch.device], list[int]] = defaultdict(list)
    for i, p in enumerate(parameters):
        places[shards.shape(p), p.device].append(i)
    for (shape, _), alike in places.items():
        size = max(1, BATCH // max(1, shape.numel())) * shards.num_batches
        yield from (alike[i : i + size] for i in range(0, len(alike), size))


def _move(
    parameters: list[Tensor], directions: list[Tensor], group: dict[str, Any], shards: Shards
) -> None:
    """Move parameters of one shape along their directions made orthogonal."""

    def made_orthogonal(batch: Tensor) -> Tensor:
        return METHODS[group["method"]](batch.flatten(0, -3), group["steps"]).view_as(batch)

    shape, dtype = shards.shape(parameters[0]), getattr(torch, group["dtype"])
    scale = 0.2 * math.sqrt(max(shape[-2:]))
    updates = shards.mapped(parameters, directions, made_orthogonal, dtype)
    for p, update in zip(parameters, updates, strict=True):
        p.add_(update, alpha=-group["lr"] * scale)


METHODS: dict[Method, Callable[[Tensor, int], Tensor]] = {
    "polar": orthogonal,
    "jordan": newton_schulz,
}
