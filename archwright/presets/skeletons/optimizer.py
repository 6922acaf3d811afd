"""A custom optimizer: options, a torch optimizer, and a function that builds it.

archwright check my_optimizer.py
archwright train demo optimizer.kind=my_optimizer budget=60s --parts my_optimizer.py
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from pydantic import Field

import archwright
from archwright.optim.groups import Parameters, parameter_groups
from archwright.spec.optimizers import Optimizer


# 1. Name and options. `compare` tunes `lr`, or another field with
# learning_rates: ClassVar[tuple[str, ...]] = ("name",).
class MyOptimizer(Optimizer):
    """m = momentum m + (1 - momentum) g, then w = w - lr (sign(m) + weight_decay w), with the gradient g (Bernstein et
    al., 2018, signSGD, algorithm 2)."""

    kind: Literal["my_optimizer"] = "my_optimizer"
    lr: float = Field(1e-3, gt=0)
    """Peak learning rate."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Share of the mean that a step keeps."""
    weight_decay: float = Field(0.1, ge=0)
    """Decay of weights per step, divided by the learning rate."""


# 2. The optimizer. The schedule sets group["lr"] before each step. self.state[w] is saved in checkpoints.
class MyOptimizerSteps(torch.optim.Optimizer):
    """Steps in the direction of the sign of the mean gradient."""

    def __init__(self, groups: Iterable[dict[str, Any]], momentum: float) -> None:
        super().__init__(groups, {"momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for w in (w for w in group["params"] if w.grad is not None):
                mean = self.state[w].setdefault("mean", torch.zeros_like(w))
                mean.lerp_(w.grad, 1 - group["momentum"])
                w.mul_(1 - group["lr"] * group["weight_decay"])
                w.sub_(mean.sign(), alpha=group["lr"])


# 3. The function that builds optimizers for all parameters, by role: matrix, embedding, head, kernel, vector.
# `parameter_groups` excludes vectors, such as gains and biases, from weight decay.
def my_optimizer(
    spec: MyOptimizer,
    by_role: Mapping[Any, Parameters],
    precision: torch.dtype,
    lr_scales: Mapping[str, float],
) -> dict[str, torch.optim.Optimizer]:
    """Return optimizers by name; `lr_scales` has learning-rate multipliers by role, as in muP."""
    groups = parameter_groups(by_role, spec.lr, spec.weight_decay, lr_scales)
    return {"my_optimizer": MyOptimizerSteps(groups, spec.momentum)}


# 4. The registration.
archwright.register(MyOptimizer, my_optimizer)
