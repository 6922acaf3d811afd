"""How a mask is cut into blocks, beside the mask itself."""

from typing import Any

import pytest
import torch
from torch import Tensor

from archwright.parts.kernels import blocks
from archwright.parts.kernels.blocks import Block, Blocks, blocks_of
from archwright.parts.masks import AttentionMask, Causal, Full, MaskPattern, Window
from archwright.parts.token_layout import token_layout
from archwright.spec import masks as spec

ROWS, LENGTH = 3, 22
COLUMNS = torch.arange(LENGTH)
DOCUMENTS = torch.stack([COLUMNS // 4, COLUMNS // 9, (COLUMNS > 12).long()])
PATTERNS: dict[str, MaskPattern] = {
    "causal": Causal(spec.Causal()),
    "window": Window(spec.Window(size=5)),
    "full": Full(spec.Full()),
}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 4)
    monkeypatch.setattr(blocks, "ALIGNED", 2)


def view(pattern: str, **given: Any) -> AttentionMask:
    return AttentionMask(PATTERNS[pattern], token_layout(torch.zeros(ROWS, LENGTH).long(), **given))


def table(cut: Blocks) -> list[Block]:
    return [Block(*line) for line in cut.table.tolist()]


def shown(cut: Blocks) -> Tensor:
    """Return the whole mask as the blocks have it."""
    seen = torch.zeros(ROWS, LENGTH, LENGTH, dtype=torch.bool)
    for block in table(cut):
        shape = (block.mask_rows, block.mask_heads, block.stop - block.first)
        part = torch.zeros(*shape, block.key_stop - block.key_first)
        stretch = part[..., block.masked_first : block.masked_stop]
        stretch += cut.mask_bias[block.mask_at :][: stretch.numel()].view(stretch.shape)
        rows = slice(block.row_first, block.row_stop or ROWS)
        at = (rows, slice(block.first, block.stop), slice(block.key_first, block.key_stop))
        assert not seen[at].any()
        seen[at] = part[:, 0] == 0
    return seen


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_they_show_what_the_mask_shows(pattern: str, documents: bool) -> None:
    given = view(pattern, segment_ids=DOCUMENTS) if documents else view(pattern)
    cut = blocks_of(given)
    assert torch.equal(shown(cut), given.dense[:, 0].expand(ROWS, -1, -1))
    pairs = [
        ((b.row_stop - b.row_first) or 1) * (b.stop - b.first) * (b.key_stop - b.key_first)
        for b in table(cut)
    ]
    assert sum(pairs) == len(cut.workspace)


def test_rows_see_no_keys_before_their_own_documents() -> None:
    for block in table(blocks_of(view("causal", segment_ids=DOCUMENTS))):
        own = DOCUMENTS[block.row_first : block.row_stop]
        starts = [int((row == row[block.first]).nonzero()[0]) for row in own]
        assert block.key_first == min(starts) // 2 * 2
        assert block.key_stop == block.stop
    # The second and third row begin in the same place at first, the first elsewhere.
    rows = [b[:3] for b in table(blocks_of(view("causal", segment_ids=DOCUMENTS)))]
    assert (0, 1, 8) in rows
    assert (1, 3, 8) in rows


def test_rows_with_equal_documents_are_one_block() -> None:
    alike = view("causal", segment_ids=DOCUMENTS[:1].expand(ROWS, -1))
    assert len(blocks_of(alike).table) == -(-LENGTH // 4)


@pytest.mark.slow
def test_pairs_grow_with_the_length_under_a_window() -> None:
    def pairs(length: int) -> int:
        window = AttentionMask(
            Window(spec.Window(size=5)), token_layout(torch.zeros(1, length).long())
        )
        cut = blocks_of(window)
        assert len(cut.mask_bias) <= 2 * 4 * 12  # the first block's, and that of all others
        return len(cut.workspace)

    assert pairs(4000) - pairs(2000) == pairs(8000) // 2 - pairs(4000) // 2


def test_equal_masks_are_cut_once() -> None:
    first, second = (blocks_of(view("causal")) for _ in range(2))
    assert first.table is second.table
    apart = (blocks_of(view("causal", segment_ids=DOCUMENTS)) for _ in range(2))
    assert next(apart).table is not next(apart).table
