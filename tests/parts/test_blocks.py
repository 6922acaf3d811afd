"""How a mask is cut into blocks, beside the mask itself."""

from typing import Any

import pytest
import torch
from torch import Tensor

from archwright.classic.spec.longformer import Longformer
from archwright.cpu import blocks
from archwright.cpu.blocks import Block, Blocks, block_of, blocks_of
from archwright.parts import masks
from archwright.parts.masks import (
    AttentionMask,
    BlockLocal,
    Causal,
    Full,
    MaskPattern,
    Window,
    WindowGlobal,
    pattern_of,
)
from archwright.parts.token_layout import TokenLayout, token_layout
from archwright.spec import masks as spec

ROWS, LENGTH = 3, 22
COLUMNS = torch.arange(LENGTH)
DOCUMENTS = torch.stack([COLUMNS // 4, COLUMNS // 9, (COLUMNS > 12).long()])
PATTERNS: dict[str, MaskPattern] = {
    "causal": Causal(spec.Causal()),
    "window": Window(spec.Window(size=5)),
    "full": Full(spec.Full()),
    "window and first keys": WindowGlobal(spec.WindowGlobal(size=3, num_global=2)),
    "windows and global tokens": pattern_of(Longformer(radius=2, num_global=2), 1),
    "blocks and global tokens": BlockLocal(spec.BlockLocal(block_size=3, shift=1, num_global=2)),
}
SCATTERED = [name for name in PATTERNS if " and " in name]
"""Patterns of which a block of queries sees keys in several places."""
PADDING = torch.stack([COLUMNS < 17, COLUMNS >= 6, COLUMNS >= 0])
GIVEN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "documents": {"segment_ids": DOCUMENTS},
    "padding": {"padding_mask": PADDING},
    "padding inside": {"padding_mask": PADDING & (COLUMNS != 9)},
    "no text": {"padding_mask": PADDING & (torch.arange(ROWS) != 1)[:, None]},
    "both": {"segment_ids": DOCUMENTS, "padding_mask": PADDING},
}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 4)
    monkeypatch.setattr(blocks, "ALIGNED", 2)


def view(pattern: str, **given: Any) -> AttentionMask:
    return AttentionMask(PATTERNS[pattern], token_layout(torch.zeros(ROWS, LENGTH).long(), **given))


def table(cut: Blocks) -> list[Block]:
    return [block_of(line) for line in cut.table.tolist()]


def shown(cut: Blocks) -> Tensor:
    """Return the whole mask as the blocks have it."""
    seen = torch.zeros(ROWS, LENGTH, LENGTH, dtype=torch.bool)
    for block in table(cut):
        shape = (block.mask_rows, block.mask_heads, block.stop - block.first)
        part = torch.zeros(*shape, block.num_keys)
        stretch = part[..., block.masked_first : block.masked_stop]
        stretch += cut.mask_bias[block.mask_at :][: stretch.numel()].view(stretch.shape)
        rows = slice(block.row_first, block.row_stop or ROWS)
        for keys, columns in zip(
            block.keys, part[:, 0].split([k.stop - k.start for k in block.keys], -1), strict=True
        ):
            at = (rows, slice(block.first, block.stop), keys)
            assert not seen[at].any()
            seen[at] = columns == 0
    return seen


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_they_show_what_the_mask_shows(pattern: str, given: str) -> None:
    narrowed = view(pattern, **GIVEN[given])
    cut = blocks_of(narrowed)
    assert torch.equal(shown(cut), narrowed.dense[:, 0].expand(ROWS, -1, -1))
    pairs = [
        ((b.row_stop - b.row_first) or 1) * (b.stop - b.first) * b.num_keys for b in table(cut)
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


@pytest.mark.parametrize("given", ["nothing", "documents", "padding"])
@pytest.mark.parametrize("pattern", SCATTERED)
def test_keys_between_those_that_are_seen_are_skipped(pattern: str, given: str) -> None:
    """Of long texts, blocks hold a number of keys that does not grow with the length."""
    length = 240
    columns = torch.arange(length)
    narrowed = {
        "nothing": {},
        "documents": {"segment_ids": (columns >= 99).long()[None]},
        "padding": {"padding_mask": torch.stack([columns >= 13, columns < 201])},
    }[given]
    rows = 2 if given == "padding" else 1
    layout = token_layout(torch.zeros(rows, length).long(), **narrowed)
    cut = table(blocks_of(AttentionMask(PATTERNS[pattern], layout)))
    # All but the block in which a text begins, where Longformer's global tokens see the whole.
    few = [block for block in cut if block.num_keys <= 20]
    assert any(len(block.keys) == 2 for block in cut)
    assert len(cut) - len(few) <= 4 * ("global tokens" in pattern)


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


def test_blocks_that_an_evaluation_cut_serve_a_backward_pass() -> None:
    """They are made once for all batches, wherever that is."""
    masks._ACROSS_PASSES.clear()
    view = AttentionMask(PATTERNS["causal"], TokenLayout(LENGTH, torch.device("cpu")))
    with torch.inference_mode():
        made = blocks_of(view)
    assert not any(tensor.is_inference() for tensor in (made.table, made.mask_bias))
