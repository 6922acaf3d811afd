"""Reformer's positions on a grid."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import ModelSizes, ScaleDown, Width
from archwright.spec.positions import Position

Widths = Annotated[tuple[Width, ...], Field(strict=False, min_length=2, max_length=8)]
"""One number per factor of a grid."""


class Axial(Position):
    """A trained vector per row and per column of a grid, concatenated and added to the embedding: position p is in row
    p // c and column p mod c of c columns (Kitaev et al., 2020, Reformer's published code). With more than two factors,
    p has a digit for each."""

    kind: Literal["axial"] = "axial"
    absolute: ClassVar[bool] = True
    ends: ClassVar[bool] = True
    shape: Literal["auto"] | Widths = Field("auto", examples=[[64, 64]])
    """Rows and columns, at least context_length positions; auto: two powers of 2 of similar size."""
    dims: Literal["auto"] | Widths = Field("auto", examples=[[128, 384]])
    """Widths of the vectors, which add up to dim; auto: a quarter of dim, and the rest."""

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        return {
            "shape": self.shape_for(sizes.context_length),
            "dims": self.dims_for(sizes.dim),
        }

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        shape, dims = self.shape_for(sizes.context_length), self.dims_for(sizes.dim)
        if math.prod(shape) < sizes.context_length:
            yield (
                f"shape: found {[*shape]}, which has {math.prod(shape):,} places; expected context_length = "
                f"{sizes.context_length:,} at least"
            )
        if sum(dims) != sizes.sum_width or len(dims) != len(shape):
            yield (
                f"dims: found {[*dims]}; expected {len(shape)} numbers, as in position.shape, which add up to the "
                f"{sizes.sum_width} coordinates of an embedding"
            )

    def shape_for(self, context_length: int) -> tuple[int, ...]:
        """Return the shape of the grid for a context length."""
        if self.shape != "auto":
            return self.shape
        power = max(0, context_length - 1).bit_length()
        return 2 ** (power // 2), 2 ** (power - power // 2)

    def dims_for(self, dim: int) -> tuple[int, ...]:
        """Return the widths of the vectors in a model of width `dim`."""
        few = max(1, dim // 4)
        return (few, max(1, dim - few)) if self.dims == "auto" else self.dims

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        return {"shape": "auto", "dims": "auto"}

    def num_absolute_parameters(self, dim: int, context_length: int) -> int:
        shape, dims = self.shape_for(context_length), self.dims_for(dim)
        return sum(number * width for number, width in zip(shape, dims, strict=True))
