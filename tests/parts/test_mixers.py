"""What attention through masks has from its base: positions, masks, and its cost."""

from typing import Any

import pytest
import torch

from archwright.cpu.blocks import BLOCK
from archwright.parts.context import Context
from archwright.parts.mixers import AttentionMixer, LatentAttention, SoftmaxAttention
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
    ("mixer", "per_pair", "kept"),
    [
        (softmax(masks.Full()), 2 * 4 * (8 + 5), 2 * (8 + 5)),
        (
            LatentAttention(
                spec.LatentAttention(
                    num_heads=4, kv_rank=6, nope_head_dim=8, rope_head_dim=4, mask=masks.Full()
                ),
                DIM,
            ),
            2 * 4 * (12 + 8),
            6 + 4,
        ),
    ],
    ids=["softmax", "latent"],
)
def test_what_it_costs_is_that_of_all_pairs_and_of_all_that_is_kept(
    mixer: AttentionMixer, per_pair: int, kept: int
) -> None:
    assert mixer.flops_per_token(10) == per_pair * 10
    assert mixer.state_bytes(10, 4) == 10 * kept * 4


def test_a_next_token_of_latent_attention_reads_latents_and_not_keys() -> None:
    """Four heads' queries of 6 + 4 meet the latent of 6 and the rotary key of 4, and mix latents of 6; the plain form
    has keys of 8 + 4 and values of 8, and with heads so narrow that it takes less, makes them again."""
    sizes = {"num_heads": 4, "kv_rank": 6, "nope_head_dim": 8, "rope_head_dim": 4}
    mixer = LatentAttention(spec.LatentAttention(**sizes), DIM)
    assert mixer.flops_of_next_token(10) == 10 * 2 * 4 * (6 + 4 + 6)
    assert mixer.values_moved(10) == 10 * 4 * 2 * (12 + 8)
    assert mixer.values_moved_by_next_token(10) == 10 * (6 + 4) + 4 * (6 + 4 + 6)
    few = LatentAttention(spec.LatentAttention(**sizes, mask=masks.Window(size=3)), DIM)
    assert few.flops_of_next_token(10) == 3 * 2 * 4 * (6 + 4 + 6)
    narrow = {"kv_rank": 32, "nope_head_dim": 1, "value_head_dim": 1}
    mixer = LatentAttention(spec.LatentAttention(**sizes | narrow), DIM)
    made_again = 9 * 2 * 32 * 4 * (1 + 1)
    assert mixer.flops_of_next_token(10) == 10 * 2 * 4 * (1 + 4 + 1) + made_again
    assert mixer.flops_of_next_token(40) == 40 * 2 * 4 * (32 + 4 + 32)


def test_a_next_token_sees_what_its_mask_shows() -> None:
    mixer = softmax(masks.Window(size=3))
    assert mixer.flops_of_next_token(10) == 3 * 2 * 4 * (8 + 5)
    assert mixer.values_moved_by_next_token(10) == 4 * (8 + 5) + 3 * 2 * (8 + 5)
    assert softmax(masks.Causal()).flops_of_next_token(1) == 2 * 4 * (8 + 5)


def test_a_window_costs_less_and_keeps_no_more_than_it_sees() -> None:
    mixer = softmax(masks.Window(size=3))
    assert mixer.flops_per_token(4) == 2 * 4 * (8 + 5) * (1 + 2 + 3 + 3) / 4
    assert mixer.state_bytes(10, 2) == 3 * 2 * (8 + 5) * 2
    assert mixer.generates_indefinitely
    assert not softmax(masks.Causal()).generates_indefinitely


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
