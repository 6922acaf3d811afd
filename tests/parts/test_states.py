"""Where a cache keeps tokens, and what it knows of them."""

import torch

from archwright.parts.states import SlotTable
from archwright.parts.token_layout import TokenLayout

CPU = torch.device("cpu")


def test_the_length_of_a_text_grows_for_the_tokens_that_were_read() -> None:
    table = SlotTable(max_length=None)
    table.take(TokenLayout(3, CPU), 2, 0)
    assert table.seen is None
    table.take(TokenLayout(2, CPU, start=3), 2, 3)
    assert table.seen is not None
    assert table.seen.lengths_so_far_or_end().tolist() == [[5] * 5] * 2
