"""Laws of optimizers and schedules, tried on a quadratic loss."""

import math
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from archwright.checkpoint import load, save
from archwright.optim import build_optimizers, learning_rate, set_learning_rates
from archwright.optim.groups import Optimizers
from archwright.spec.optimizers import Optimizer
from archwright.spec.schedules import Schedule
from archwright.testing.law import Broken

STEPS = 20
LENGTHS = (1, 100, 100.5)
"""Numbers of steps to try schedules with; a time budget has a fractional number of steps."""


class Bowl(nn.Module):
    """A module with a parameter of each role and the loss (1/2) sum (w - target)^2."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.middle = nn.Linear(4, 6)
        self.head = nn.Linear(6, 8, bias=False)
        generator = torch.Generator().manual_seed(0)
        self.targets: list[Tensor] = []
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()
                self.targets.append(torch.randn(parameter.shape, generator=generator))

    def forward(self) -> Tensor:
        pairs = zip(self.parameters(), self.targets, strict=True)
        return 0.5 * torch.stack([(w - target).square().sum() for w, target in pairs]).sum()

    def weights(self) -> list[Tensor]:
        """Return a copy of all weights."""
        return [parameter.detach().clone() for parameter in self.parameters()]


def moves_all(spec: Optimizer) -> None:
    """The optimizer moves every parameter."""
    bowl = Bowl()
    _steps(bowl, build_optimizers(bowl, spec), 2)
    for (name, _), now in zip(bowl.named_parameters(), bowl.weights(), strict=True):
        if not now.any():
            raise Broken(
                f"{name} is where it was after 2 steps; move every p of group['params'] whose p.grad is there"
            )


def the_loss_falls(spec: Optimizer) -> None:
    """The loss of a quadratic bowl falls at the default learning rate."""
    bowl = Bowl()
    first = bowl().item()
    _steps(bowl, build_optimizers(bowl, spec), STEPS)
    last = bowl().item()
    if not last < first:
        raise Broken(
            f"{first:.4g} at first, {last:.4g} after {STEPS} steps; is the sign of the step right, and the default "
            "learning rate small enough?"
        )


def a_rate_of_zero_moves_nothing(spec: Optimizer) -> None:
    """Steps follow the learning rate of the schedule, which at 0 moves nothing."""
    bowl = Bowl()
    optimizers = build_optimizers(bowl, spec)
    _steps(bowl, optimizers, 1)
    before = bowl.weights()
    set_learning_rates(optimizers, 0.0)
    _steps(bowl, optimizers, 1)
    if not _equal(before, bowl.weights()):
        raise Broken(
            'weights moved; multiply a step, and what decays, by group["lr"], not by the lr of the spec'
        )


def state_returns(spec: Optimizer) -> None:
    """Training continues bit for bit after saving and loading."""
    first, again = Bowl(), Bowl()
    optimizers, others = (build_optimizers(bowl, spec) for bowl in (first, again))
    _drawn_steps(first, optimizers, range(3))
    with tempfile.TemporaryDirectory() as folder:
        path = save(Path(folder, "steps"), 3, model=first, optimizers=optimizers, state={}, keep=1)
        _drawn_steps(first, optimizers, range(3, 6))
        load(path, model=again, optimizers=others)
    _drawn_steps(again, others, range(3, 6))
    if not _equal(first.weights(), again.weights()):
        raise Broken(
            "weights differ after 3 more steps; keep what a step needs of those before in self.state[p], as tensors or "
            "numbers"
        )


def _steps(bowl: Bowl, optimizers: Optimizers, number: int) -> None:
    """Take optimizer steps on the gradients of the bowl."""
    for _ in range(number):
        bowl.zero_grad()
        bowl().backward()
        for optimizer in optimizers.values():
            optimizer.step()


def _drawn_steps(bowl: Bowl, optimizers: Optimizers, steps: range) -> None:
    """Take optimizer steps on random gradients, so that optimizer state matters."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in bowl.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for optimizer in optimizers.values():
            optimizer.step()


def _equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def shares_are_from_0_to_1(spec: Schedule) -> None:
    """The share of the peak learning rate is from 0 to 1 at every step."""
    for num_steps in LENGTHS:
        for step, share in _shares(spec, num_steps).items():
            if not (math.isfinite(share) and 0 <= share <= 1):
                raise Broken(
                    f"{share:.4g} at step {step} of {num_steps}; expected a share of the peak, 0 to 1"
                )


def a_function_of_the_step(spec: Schedule) -> None:
    """The learning rate depends only on the step, as resumed runs require."""
    forth = _shares(spec, LENGTHS[-1])
    back = {step: learning_rate(spec, step, LENGTHS[-1]) for step in reversed(forth)}
    for step, share in forth.items():
        if share != back[step]:
            raise Broken(
                f"{share:.4g} and {back[step]:.4g} at step {step}; keep nothing between calls"
            )


def _shares(spec: Schedule, num_steps: float) -> dict[int, float]:
    return {step: learning_rate(spec, step, num_steps) for step in range(math.ceil(num_steps) + 1)}
