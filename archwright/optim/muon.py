"""Muon: momentum whose directions all count alike, for the matrices inside a model."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor

Quintic = tuple[float, float, float]

JORDAN: Quintic = (3.4445, -4.7750, 2.0315)
"""Coefficients of steepest slope at zero (Jordan et al., 2024)."""


class Muon(torch.optim.Optimizer):
    """W <- W - lr (weight_decay W + 0.2 sqrt(max(d_out, d_in)) U V^T), U S V^T the momentum's SVD.

    Momentum is m <- mu m + (1 - mu) g, with Nesterov's look ahead (1 - mu) g + mu m. U V^T is
    approximated by `steps` of Newton-Schulz in `dtype`. The factor gives the update a root mean
    square of 0.2, that of a typical AdamW update, so that both take the same learning rates.
    Matrices of one shape are orthogonalised together; [*, d_out, d_in] counts as separate matrices.

    Raises:
        ValueError: a parameter that is no matrix.

    Source: Jordan et al., 2024, Muon; Liu et al., 2025, arXiv 2502.16982, section 2.2.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        steps: int = 5,
        weight_decay: float = 0.1,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "nesterov": nesterov,
                "steps": steps,
                "weight_decay": weight_decay,
                "dtype": str(dtype).removeprefix("torch."),
            },
        )
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim < 2:
                    raise ValueError(
                        f"Muon takes matrices, found a parameter of shape "
                        f"{list(parameter.shape)}; leave it to AdamW"
                    )

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._update(group, parameters)
        return loss

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        directions = self._momentum(group, parameters)
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        by_shape: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for i, p in enumerate(parameters):
            by_shape[(*sorted(p.shape[-2:]), p.shape[:-2], p.device, p.dtype)].append(i)
        for indices in by_shape.values():
            wide = [_lying(directions[i]) for i in indices]
            batch = torch.stack(wide).to(getattr(torch, group["dtype"]))
            for i, update in zip(indices, newton_schulz(batch, group["steps"]), strict=True):
                p = parameters[i]
                scale = 0.2 * math.sqrt(max(p.shape[-2:]))
                update = update if p.shape[-2] <= p.shape[-1] else update.mT
                p.add_(update, alpha=-group["lr"] * scale)

    def _momentum(self, group: dict[str, Any], parameters: list[Tensor]) -> list[Tensor]:
        """Take the gradients into the momentum, and return the directions to go."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        for p in parameters:
            if not self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        momenta = [self.state[p]["momentum"] for p in parameters]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        if not group["nesterov"]:
            return momenta
        return list(torch._foreach_lerp(gradients, momenta, group["momentum"]))


def newton_schulz(x: Tensor, steps: int) -> Tensor:
    """Return approximately U V^T for matrices [*, m, n], m <= n, with SVD U S V^T.

    X <- a X + b (X X^T) X + c (X X^T)² X moves all singular values towards 1.
    """
    shape = x.shape
    x = x.flatten(end_dim=-3)
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    a, b, c = JORDAN
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.view(shape)


def _lying(x: Tensor) -> Tensor:
    """Return a matrix with its longer side as columns."""
    return x if x.shape[-2] <= x.shape[-1] else x.mT
