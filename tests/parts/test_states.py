"""What mixers keep: the one verb, by itself."""

import pytest
import torch

from archwright.parts.masks import MASKS, max_length
from archwright.parts.states import KVCache, LayerState, RecurrentState, SlotTable
from archwright.parts.token_layout import token_layout
from archwright.spec import masks


@pytest.mark.parametrize("max_length", [None, 4])
def test_returned_are_the_keys_of_all_visible_tokens(max_length: int | None) -> None:
    slots = SlotTable(max_length)
    state, read = KVCache(max_length), 0
    for size in (3, 1, 6, 1, 1):
        layout = token_layout(torch.zeros(1, size, dtype=torch.long), start=read)
        slots.take(layout, 1, read)
        new = torch.arange(read, read + size).double()[None, :, None, None]
        keys, values = state.update(slots, new, -new)
        read += size
        assert torch.equal(values, -keys)
        at = layout if slots.seen is None else slots.seen
        index = at.index_or_range()[0].tolist()
        full = [i for i in range(len(index)) if index[i] >= 0]
        assert keys[0, :, 0, 0][full].tolist() == [float(index[i]) for i in full]
        first = 0 if max_length is None else max(0, read - size - max_length + 1)
        assert set(range(first, read)) <= {index[i] for i in full}


@pytest.mark.parametrize(
    "mask", [masks.Window(size=5), masks.Chunked(size=4), masks.DilatedWindow(size=3, dilation=2)]
)
def test_as_many_tokens_are_kept_as_any_query_sees(mask: masks.Mask) -> None:
    pattern = MASKS[type(mask)](mask)
    kept = max_length(pattern)
    assert kept is not None
    places = torch.arange(24)
    seen = pattern.visible(places[:, None], places)
    behind = places[:, None] - places
    assert int(behind[seen].max()) == kept - 1


def test_what_was_read_grows_with_its_text() -> None:
    """Angles that follow the length of a text are those of all of it, for kept keys too."""
    slots = SlotTable(None)
    for read, size in ((0, 3), (3, 2)):
        slots.take(token_layout(torch.zeros(1, size).long(), start=read), 1, read)
    assert slots.seen is not None
    assert slots.seen.lengths_so_far_or_end().tolist() == [[5] * 5]


def test_a_recurrent_state_is_replaced_and_carries_no_gradient() -> None:
    state = RecurrentState()
    assert isinstance(state, LayerState)
    assert state.get("matrix") is None
    for value in (1.0, 2.0):
        state.update(matrix=torch.full((2, 3), value, requires_grad=True))
        found = state.get("matrix")
        assert found is not None
        assert not found.requires_grad
        assert found.unique().tolist() == [value]
    assert state.num_bytes == 2 * 3 * 4
