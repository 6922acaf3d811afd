"""Gated short convolutions against the formula, token by token, and against transformers' module."""

from typing import Any

import pytest
import torch
from torch import Tensor

from archwright.model.build import build_layer
from archwright.parts.context import Context
from archwright.parts.mixers import GatedConv
from archwright.parts.sharing import LayerInfo
from archwright.parts.token_layout import token_layout
from archwright.scale.cuts import cut_axes, own_part, share_sizes
from archwright.spec.model_spec import ModelSpec
from archwright.spec.recurrences import ShortConvolution
from archwright.testing import check

DIM = 6


def mixer(width: int = 3, *, bias: bool = True) -> GatedConv:
    part = GatedConv(ShortConvolution(width=width, bias=bias), DIM, LayerInfo()).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return part


def drawn(length: int, batch: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, length, DIM, dtype=torch.float64, generator=generator)


def by_hand(part: GatedConv, text: Tensor) -> Tensor:
    """Return the outputs of one text [length, dim]: y_t = W_out (c_t * (sum_j w_j b_(t-j) x_(t-j) + bias))."""
    state: dict[str, Tensor] = part.state_dict()

    def linear(name: str, x: Tensor) -> Tensor:
        y = state[f"{name}.weight"] @ x
        return y + state[f"{name}.bias"] if f"{name}.bias" in state else y

    gated = [linear("in_gate", x) * linear("value", x) for x in text]
    taps, outs = state["conv.weight"][:, 0].flip(-1).unbind(-1), []
    for t, x in enumerate(text):
        y = sum(tap * gated[t - j] for j, tap in enumerate(taps) if j <= t)
        y = y + state.get("conv.bias", torch.zeros(DIM))
        outs.append(linear("out", linear("out_gate", x) * y))
    return torch.stack(outs)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("width", "length"), [(1, 5), (3, 1), (3, 2), (3, 65), (4, 20)])
def test_it_is_the_formula(width: int, length: int, bias: bool) -> None:
    part, x = mixer(width, bias=bias), drawn(length)
    torch.testing.assert_close(part(x, Context.alone(x))[0], by_hand(part, x[0]))


def test_documents_padding_and_pieces_are_texts_of_their_own() -> None:
    part, x = mixer(), drawn(20)
    real = torch.arange(20)[None] != 9
    documents = (torch.arange(20)[None] >= 6).long()
    layout = token_layout(real.long(), segment_ids=documents, padding_mask=real)
    expected = torch.cat((by_hand(part, x[0, :6]), by_hand(part, x[0, 6:][real[0, 6:]])))
    y = part(x, Context(layout, 1))
    torch.testing.assert_close(y[real], expected)
    state, parts = part.new_state(1), []
    for start, stop in ((0, 1), (1, 4), (4, 20)):
        piece = token_layout(real[:, start:stop].long(), start=start)
        parts.append(part(x[:, start:stop], Context(piece, 1), state))
    torch.testing.assert_close(torch.cat(parts, 1)[0], by_hand(part, x[0]))
    assert part.state_bytes(20, 8) == state.num_bytes == 2 * DIM * 8


def test_it_is_the_module_of_transformers() -> None:
    library: Any = pytest.importorskip("transformers.models.lfm2.modeling_lfm2")
    config = library.Lfm2Config(
        hidden_size=DIM, num_hidden_layers=1, layer_types=["conv"], conv_bias=True, conv_L_cache=4
    )
    theirs, part, x = library.Lfm2ShortConv(config, 0).double(), mixer(4), drawn(11, 2)
    with torch.no_grad():
        for name in ("weight", "bias"):
            maps = [getattr(m, name) for m in (part.in_gate, part.out_gate, part.value)]
            getattr(theirs.in_proj, name).copy_(torch.cat(maps))
            getattr(theirs.conv, name).copy_(getattr(part.conv, name))
            getattr(theirs.out_proj, name).copy_(getattr(part.out, name))
        torch.testing.assert_close(part(x, Context.alone(x)), theirs(x))


def test_ranks_that_split_the_channels_add_up() -> None:
    words = ("attention.kind=none", "position.kind=none", "recurrence.kind=short_conv")
    spec = ModelSpec(dim=8, num_layers=1, vocab_size=16).override(*words, "recurrence.bias=true")

    def made() -> Any:
        torch.manual_seed(0)
        part = build_layer(spec).double().mixers()["recurrence"]
        for parameter in part.parameters():
            torch.nn.init.normal_(parameter)
        return part

    whole, parts = made(), [made(), made()]
    for rank, part in enumerate(parts):
        for tensor, axis in dict(cut_axes(part)).items():
            tensor.data = own_part(tensor.data, axis, 2, rank)
        share_sizes(part, 2)
    x = torch.randn(1, 7, 8, dtype=torch.float64)
    found = sum(part(x, Context.alone(x)) for part in parts)
    torch.testing.assert_close(found, whole(x, Context.alone(x)))


@pytest.mark.slow
def test_it_keeps_all_laws() -> None:
    checked = check(ShortConvolution)
    assert checked.good, [f for f in checked.findings if f.state == "broken"]
