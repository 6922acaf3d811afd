"""An optimizer from outside the package with a schedule of its own: Lion, whose rate falls as a square root grows.

archwright train modern --parts lion.py optimizer.kind=lion schedule.kind=one_minus_sqrt
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from pydantic import Field

import archwright as aw
from archwright.optim.groups import Parameters, parameter_groups
from archwright.spec.optimizers import Betas, Optimizer
from archwright.spec.schedules import Schedule


class Lion(Optimizer):
    """w = (1 - lr weight_decay) w - lr sign(b1 m + (1 - b1) g), then m = b2 m + (1 - b2) g, with the gradient g
    (Chen et al., 2023, algorithm 2)."""

    kind: Literal["lion"] = "lion"
    lr: float = Field(3e-4, gt=0)
    """Peak learning rate."""
    betas: Betas = (0.9, 0.99)
    """Share of the momentum m in a step, and its decay."""
    weight_decay: float = Field(1.0, ge=0)
    """Times the learning rate: the share of a weight that a step takes off."""


class LionOptimizer(torch.optim.Optimizer):
    def __init__(self, groups: Iterable[dict[str, Any]], betas: tuple[float, float]) -> None:
        super().__init__(groups, {"betas": betas})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for w in (w for w in group["params"] if w.grad is not None):
                m = self.state[w].setdefault("momentum", torch.zeros_like(w))
                w.mul_(1 - group["lr"] * group["weight_decay"])
                w.sub_(torch.lerp(w.grad, m, b1).sign(), alpha=group["lr"])
                m.lerp_(w.grad, 1 - b2)


def lion(
    spec: Lion,
    by_role: Mapping[str, Parameters],
    precision: torch.dtype,
    lr_scales: Mapping[str, float],
) -> dict[str, torch.optim.Optimizer]:
    groups = parameter_groups(by_role, spec.lr, spec.weight_decay, lr_scales)
    return {"lion": LionOptimizer(groups, spec.betas)}


class OneMinusSqrt(Schedule):
    """1 - sqrt(t), t from 0 after warm-up to 1 at the end (Hägele et al., 2024, section 3)."""

    kind: Literal["one_minus_sqrt"] = "one_minus_sqrt"


def one_minus_sqrt(spec: OneMinusSqrt, step: int, warmup: int, num_steps: float) -> float:
    return 1 - math.sqrt(min(1.0, (step - warmup) / max(1, num_steps - warmup)))


aw.register(Lion, lion)
aw.register(OneMinusSqrt, one_minus_sqrt)
