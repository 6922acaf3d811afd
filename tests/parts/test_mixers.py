"""What attention through masks has from its base: positions, masks, and its cost."""

from typing import Any

import pytest
import torch

from archwright.cpu.blocks import BLOCK
from archwright.parts.context import Context
from archwright.parts.mixers import SoftmaxAttention
from archwright.parts.sharing import LayerInfo, Sharing
from archwright.parts.token_layout import TokenLayout
from archwright.spec import attention as spec
from archwright.spec import masks, positions

DIM = 32


def softmax(mask: masks.Mask, layer: LayerInfo | None = None) -> SoftmaxAttention:
    choice = spec.SoftmaxAttention(num_heads=4, num_kv_heads=2, value_head_dim=5, mask=mask)
    return SoftmaxAttention(choice, DIM, layer)


@pytest.mark.parametrize(("mask", "two_way"), [(masks.Full(), True), (masks.Causal(), False)])
def test_distances_ahead_have_buckets_where_they_are_seen(mask: masks.Mask, two_way: bool) -> None:
    relative: Any = softmax(mask, LayerInfo(position=positions.T5Bias())).relative
    assert relative.value.two_way is two_way


def test_a_mask_is_made_for_as_many_heads_as_see_differently() -> None:
    pattern: Any = softmax(masks.BlockSparse(block_size=2, stride=4)).pattern.value
    assert pattern.num_heads == 4


def test_layers_share_what_is_alike() -> None:
    sharing = Sharing()
    first, second = (
        softmax(masks.Causal(), LayerInfo(number, positions.RoPE(), sharing)) for number in (1, 2)
    )
    window = softmax(masks.Window(size=4), LayerInfo(3, positions.RoPE(theta=500.0), sharing))
    assert first.pattern.value is second.pattern.value is not window.pattern.value
    assert first.rotary is not None
    assert second.rotary is not None
    assert window.rotary is not None
    assert first.rotary.value is second.rotary.value is not window.rotary.value
    assert list(sharing.rotaries) == ["rotary_0", "rotary_1"]


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("eager", "dense"),
        ("sdpa", "dense"),
        ("flex", "flex block mask"),
        ("blockwise", f"blocks of {BLOCK}"),
    ],
)
def test_a_kernel_finds_its_mask_prepared(kernel: str, name: str) -> None:
    mixer, context = softmax(masks.Window(size=3)), Context(TokenLayout(6, torch.device("cpu")), 1)
    mixer.use_kernel(kernel)
    made = context.mask(mixer.pattern).made
    with torch.no_grad():
        mixer.prepare(context)
        assert made.keys() == {name}
        mixer(torch.zeros(1, 6, DIM), context)
    assert made.keys() == {name}


def test_no_dense_mask_is_prepared_for_plain_causal_attention() -> None:
    mixer, context = softmax(masks.Causal()), Context(TokenLayout(6, torch.device("cpu")), 1)
    mixer.prepare(context)
    assert not context.mask(mixer.pattern).made
