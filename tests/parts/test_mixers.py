"""What attention costs, keeps and knows of distances follows from its mask."""

import pytest

from archwright.model import build
from archwright.parts.masks import max_length, pattern_of
from archwright.parts.mixers.base import AttentionMixer
from archwright.spec.masks import BlockSparse, Causal, Window
from archwright.spec.model_spec import ModelSpec

SMALL = ModelSpec(dim=32, num_layers=1, context_length=32, vocab_size=64)


def mixer(*changes: str) -> AttentionMixer:
    (found,) = build(SMALL.override("attention.num_heads=4", *changes)).mixers()
    assert isinstance(found, AttentionMixer)
    return found


def test_a_cache_keeps_what_a_mask_can_show() -> None:
    assert max_length(pattern_of(Causal(), 4)) is None
    assert max_length(pattern_of(Window(size=5), 4)) == 5
    window = mixer("attention.mask={kind='window', size=5}")
    assert window.state_bytes(20, 2) == window.state_bytes(5, 2) == 5 * 2 * 32 * 2
    assert mixer().state_bytes(20, 2) == 20 * 2 * 32 * 2


def test_a_token_costs_the_mean_of_the_keys_it_sees() -> None:
    causal = mixer()
    assert causal.flops_per_token(31) == pytest.approx(causal.flops_per_pair * 16)


def test_heads_may_see_differently() -> None:
    apart, alike = (pattern_of(BlockSparse(per_head=each), 4) for each in (True, False))
    assert (apart.num_heads, alike.num_heads) == (4, 1)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("mask", "two_way"), [("causal", False), ("full", True)])
def test_distances_have_two_directions_where_keys_ahead_are_seen(mask: str, two_way: bool) -> None:
    relative = mixer(f"attention.mask.kind={mask}", "position.kind=t5").relative
    assert relative is not None
    assert relative.value.two_way is two_way
