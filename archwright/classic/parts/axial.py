"""Reformer's positions on a grid."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archwright.classic.spec import axial as spec
from archwright.parts.linear import Embedding
from archwright.parts.positions.absolute import end_of
from archwright.parts.token_layout import TokenLayout


class Axial(nn.Module):
    """P[p] = [R[p // c] ‖ C[p mod c]], with `tables` R [rows, dims[0]] and C [c, dims[1]].

    With more tables, p is a number with mixed radices; the last table has the lowest digit.

    Kitaev et al., 2020 (its published code).

    Raises:
        ValueError: the text has more tokens than the grid has places.
    """

    def __init__(self, spec: spec.Axial, dim: int, context_length: int) -> None:
        super().__init__()
        self.shape = spec.shape_for(context_length)
        sizes = zip(self.shape, spec.dims_for(dim), strict=True)
        self.tables = nn.ModuleList(Embedding(number, width) for number, width in sizes)

    def forward(self, layout: TokenLayout) -> Float[Tensor, "rows length dim"]:
        places, length = math.prod(self.shape), end_of(layout)
        if length > places:
            raise ValueError(
                f"found {length} tokens; expected at most {places}, the places of position.shape = {[*self.shape]}"
            )
        # Digits of p, the lowest first.
        rest, vectors = layout.position_ids_or_range(), []
        for number, table in zip(reversed(self.shape), reversed(self.tables), strict=True):
            vectors.append(table(rest % number))
            rest = rest // number
        return torch.cat(vectors[::-1], -1)  # [rows, length, dim]
