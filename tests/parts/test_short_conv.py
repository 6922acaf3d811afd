"""Short convolutions against torch's own, with documents, padding, and texts in pieces."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archwright.optim.groups import roles
from archwright.parts.short_conv import ShortConv
from archwright.parts.token_layout import Read, TokenLayout, token_layout

CHANNELS, LENGTH = 3, 9


def conv(width: int = 4, *, bias: bool = True) -> ShortConv:
    torch.manual_seed(0)
    return ShortConv(CHANNELS, width, bias=bias).double()


def alone(part: ShortConv, x: Tensor) -> Tensor:
    """Torch's convolution of one text [length, channels], with zeros before it."""
    padded = F.pad(x.mT, (part.width - 1, 0))[None]
    return F.conv1d(padded, part.weight, part.bias, groups=CHANNELS)[0].mT


def drawn(batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, LENGTH, CHANNELS, dtype=torch.float64, generator=generator)


def layout(**given: Tensor) -> TokenLayout:
    return token_layout(torch.zeros(2, LENGTH).long(), **given)


@pytest.mark.parametrize("width", [1, 2, 4, 12])
@pytest.mark.parametrize("bias", [False, True])
def test_it_is_torchs_convolution(width: int, bias: bool) -> None:
    part, x = conv(width, bias=bias), drawn()
    y, tail = part(x, layout())
    torch.testing.assert_close(y, torch.stack([alone(part, row) for row in x]))
    assert tail.shape == (2, width - 1, CHANNELS)


def test_no_tap_reaches_into_the_document_before() -> None:
    part, x = conv(), drawn()
    y, _ = part(
        x, layout(segment_ids=torch.tensor([[0] * 4 + [1] * 5, [0, 1, 2, 2, 2, 2, 3, 3, 3]]))
    )
    for row, texts in ((0, [(0, 4), (4, 9)]), (1, [(0, 1), (1, 2), (2, 6), (6, 9)])):
        for start, stop in texts:
            torch.testing.assert_close(y[row, start:stop], alone(part, x[row, start:stop]))


def test_padding_is_skipped_wherever_it_stands() -> None:
    part, x = conv(), drawn()
    real = torch.tensor([[0, 0, 1, 1, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 0, 0]]).bool()
    y, tail = part(x, layout(padding_mask=real))
    for row in range(2):
        torch.testing.assert_close(y[row][real[row]], alone(part, x[row][real[row]]))
        torch.testing.assert_close(tail[row], x[row][real[row]][-3:])


@pytest.mark.parametrize("sizes", [(1,) * 9, (2, 1, 6), (5, 4)])
def test_a_text_in_pieces_is_the_text(sizes: tuple[int, ...]) -> None:
    """Each piece has padding on either side, and a piece may be all padding in a row."""
    part, x = conv(), drawn()
    expected, tail, start, found = part(x, layout())[0], None, 0, []
    for number, size in enumerate(sizes):
        piece = torch.zeros(2, size + 2, CHANNELS, dtype=x.dtype)
        real = torch.zeros(2, size + 2).bool()
        first = number % 3
        real[:, first : first + size] = True
        piece[:, first : first + size] = x[:, start : start + size]
        read = Read(torch.full((2,), start), None)
        where = token_layout(torch.zeros(2, size + 2).long(), padding_mask=real, read=read)
        y, tail = part(piece, where, tail)
        found.append(y[:, first : first + size])
        _, same = part(
            piece, TokenLayout(size + 2, x.device, padding_mask=torch.zeros_like(real)), tail
        )
        assert torch.equal(same, tail)
        start += size
    torch.testing.assert_close(torch.cat(found, 1), expected)


def test_its_weight_is_a_filter_for_optimizers() -> None:
    assert roles(conv()) == {"weight": "kernel", "bias": "vector"}


def test_a_tail_does_not_hold_the_memory_of_all_tokens() -> None:
    _, tail = conv()(drawn(), layout())
    assert tail.untyped_storage().nbytes() == tail.nbytes
