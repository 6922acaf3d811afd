"""A custom feed-forward: the function that a layer applies to each token separately.

archwright check my_feedforward.py
archwright train demo model.feedforward.kind=my_feedforward budget=60s --parts my_feedforward.py

For another function between the usual maps, derive the options from `Gated` of archwright.spec.feedforward, and use
archwright.register(Mine, lambda spec: lambda gate, up: gate.sin() * up).
"""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

import archwright
from archwright.parts.branch import Branch
from archwright.parts.linear import Linear
from archwright.spec.choice import AutoWidth, ModelSizes
from archwright.spec.feedforward import FeedForward


# 1. Name and options. Scaled-down models keep the ratio of hidden_dim to the model's width.
class MyFeedforward(FeedForward):
    """down(max(0, up(x) + offset)^2), with a learned offset (your paper, year)."""

    kind: Literal["my_feedforward"] = "my_feedforward"
    hidden_dim: AutoWidth = Field("auto", examples=[2048])
    """Width of the hidden layer; auto: 4 dim."""

    # Values of "auto" options.
    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        return {"hidden_dim": self.width(sizes.dim)}

    # Number of parameters, which `compare` makes equal for all variants.
    def num_parameters(self, dim: int) -> int:
        return 2 * dim * self.width(dim) + self.width(dim)

    def width(self, dim: int) -> int:
        """Return the hidden width."""
        return 4 * dim if self.hidden_dim == "auto" else self.hidden_dim


# 2. The module. The model's initialisation draws `Linear`.
class MyFeedforwardModule(Branch):
    """y = down(max(0, up(x) + offset)^2). Shapes: x and y [..., dim]; offset [hidden_dim]."""

    def __init__(self, spec: MyFeedforward, dim: int) -> None:
        super().__init__()
        width = spec.width(dim)
        self.up = Linear(dim, width)
        self.down = Linear(width, dim, is_residual_output=True)
        self.offset = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        y: Tensor = self.down((hidden + self.offset.to(hidden.dtype)).relu().square())
        return y

    # Initial values of the module's own parameters; those of `Linear` come from the model's initialisation.
    def reset_parameters(self) -> None:
        nn.init.zeros_(self.offset)


# 3. The registration.
archwright.register(MyFeedforward, MyFeedforwardModule)
