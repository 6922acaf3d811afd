"""Positions on a grid: digits of the position are rows of tables."""

import math
from itertools import product

import pytest
import torch

from archwright.classic.parts.axial import Axial
from archwright.classic.spec import axial as spec
from archwright.parts.token_layout import token_layout
from tests.parts.test_positions import plain


class TestAxial:
    @pytest.mark.parametrize(
        ("shape", "dims"), [((3, 4), (2, 4)), ((2, 5), (5, 1)), ((2, 3, 2), (1, 2, 3))], ids=str
    )
    def test_digits_of_the_position_are_rows_of_the_tables(
        self, shape: tuple[int, ...], dims: tuple[int, ...]
    ) -> None:
        part = Axial(spec.Axial(shape=shape, dims=dims), 6, math.prod(shape))
        tables = [torch.nn.init.normal_(table.weight) for table in part.tables]
        found = part(plain(math.prod(shape)))[0]
        for row, digits in zip(found, product(*map(range, shape)), strict=True):
            expected = [table[n] for table, n in zip(tables, digits, strict=True)]
            assert torch.equal(row, torch.cat(expected))

    def test_given_positions_count(self) -> None:
        part = Axial(spec.Axial(shape=(3, 4), dims=(2, 4)), 6, 12)
        for table in part.tables:
            torch.nn.init.normal_(table.weight)
        given = torch.tensor([7, 2])
        found = part(token_layout(torch.zeros(1, 2, dtype=torch.long), given))
        assert torch.equal(found[0], part(plain(12))[0, given])

    def test_the_grid_ends(self) -> None:
        part = Axial(spec.Axial(shape=(3, 4), dims=(2, 4)), 6, 12)
        with pytest.raises(
            ValueError, match=r"found 13 tokens; expected at most 12, the places of"
        ):
            part(plain(13))

    @pytest.mark.parametrize("length", [1, 2, 3, 100, 128, 65536])
    def test_a_grid_that_is_left_open_holds_the_longest_text(self, length: int) -> None:
        rows, columns = spec.Axial().shape_for(length)
        assert length <= rows * columns < 2 * length
        assert rows <= columns <= 2 * rows
