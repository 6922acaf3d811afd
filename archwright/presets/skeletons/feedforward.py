"""A feed-forward of your own: what a layer computes of each token by itself.

archwright check my_feedforward.py
archwright train demo model.feedforward.kind=my_feedforward budget=60s --parts my_feedforward.py

Where only the function between the maps is yours, two classes are enough: `class Mine(Gated)` of
archwright.spec.feedforward with its kind, and archwright.register(Mine, lambda spec: lambda gate, up: gate.sin() * up).
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


# 1. What it is called, and which options it has. Smaller models keep the ratio of an option called hidden_dim to the
# width by themselves.
class MyFeedforward(FeedForward):
    """down(max(0, up(x) + offset)^2), with a learned offset (your paper, year)."""

    kind: Literal["my_feedforward"] = "my_feedforward"
    hidden_dim: AutoWidth = Field("auto", examples=[2048])
    """Width of the hidden layer; auto: 4 dim."""

    # The number that stands for each "auto".
    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        return {"hidden_dim": self.width(sizes.dim)}

    # The number of parameters, by which `compare` makes variants equal.
    def num_parameters(self, dim: int) -> int:
        return 2 * dim * self.width(dim) + self.width(dim)

    def width(self, dim: int) -> int:
        """Return the hidden width as a number."""
        return 4 * dim if self.hidden_dim == "auto" else self.hidden_dim


# 2. What computes it. `Linear` is drawn by the model's initialisation.
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

    # First values of its own parameters; those of `Linear` are drawn elsewhere.
    def reset_parameters(self) -> None:
        nn.init.zeros_(self.offset)


# 3. The line that joins them.
archwright.register(MyFeedforward, MyFeedforwardModule)
