"""What a cache promises: how much it holds, what it returns, and which uses it refuses."""

import math
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor

from archwright.model import Decoder, build
from archwright.parts import states
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec

SMALL = ModelSpec(dim=16, num_layers=2, context_length=512, vocab_size=32).override(
    "attention.num_heads=4", "attention.num_kv_heads=2"
)
FIRST_CAPACITY = 8
"""Slots to begin with, fewer than outside tests."""
SLOT = 2 * 2 * 4 * 8
"""Bytes of a token in one layer: key and value, two heads of four, float64."""
MASKS: dict[str, list[str]] = {
    "causal": [],
    "window": ["attention.mask.kind=window", "attention.mask.size=5"],
    "chunked": ["attention.mask.kind=chunked", "attention.mask.size=6"],
    "segment_memory": [
        "attention.mask.kind=segment_memory",
        "attention.mask.size=4",
        "attention.mask.memory=3",
    ],
    "dilated_window": [
        "attention.mask.kind=dilated_window",
        "attention.mask.size=3",
        "attention.mask.dilation=2",
    ],
    "window_global": ["attention.mask.kind=window_global", "attention.mask.size=4"],
    "strided": ["attention.mask.kind=strided", "attention.mask.stride=4"],
    "fixed": ["attention.mask.kind=fixed", "attention.mask.stride=4"],
    "prefix": ["attention.mask.kind=prefix", "attention.mask.size=3"],
    "mixed": [
        "attention.mask.kind=window",
        "attention.mask.size=5",
        "layer_kinds.whole.attention.mask.kind=causal",
        'layers.cycle=["default", "whole"]',
    ],
}
REACH = {"window": 5, "chunked": 6, "segment_memory": 7, "dilated_window": 5}
"""Tokens that a mask reaches back, where it has an end."""


@pytest.fixture(autouse=True)
def _few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "FIRST_CAPACITY", FIRST_CAPACITY)


def small(mask: str, *words: str) -> Decoder:
    return build(SMALL.override(*MASKS[mask], *words)).double().eval()


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, 32, shape, generator=torch.Generator().manual_seed(sum(shape)))


def read(model: Decoder, row: Tensor, sizes: list[int], **given: Any) -> tuple[Tensor, list[int]]:
    """Read a text in pieces; return its logits, and the bytes held after each piece."""
    cache, found, held = model.new_cache(), [], []
    with torch.no_grad():
        for piece in row.split(sizes, 1):
            found.append(model(piece, cache=cache, **given).logits)
            held.append(cache.num_bytes)
    assert cache.num_read == row.shape[1]
    return torch.cat(found, 1), held


def whole(model: Decoder, row: Tensor, **given: Any) -> Tensor:
    with torch.no_grad():
        return model(row, **given).logits


class TestBytes:
    def test_an_empty_cache_holds_nothing(self) -> None:
        cache = small("causal").new_cache()
        assert (cache.num_bytes, cache.num_read) == (0, 0)

    @pytest.mark.slow
    @pytest.mark.parametrize("mask", ["causal", "window_global", "strided", "fixed"])
    def test_what_sees_all_doubles(self, mask: str) -> None:
        """One slot more takes what is not kept."""
        length, batch = 3 * FIRST_CAPACITY, 3
        _, held = read(small(mask), tokens(batch, length), [1] * length)
        for number, found in enumerate(held, 1):
            doublings = max(0, math.ceil(math.log2(number / FIRST_CAPACITY)))
            capacity = FIRST_CAPACITY * 2**doublings
            assert found == 2 * batch * SLOT * (capacity + 1)
        assert len(set(held)) == 3

    def test_a_long_text_at_once_takes_what_it_needs(self) -> None:
        _, held = read(small("causal"), tokens(1, 31), [30, 1])
        assert held == [2 * SLOT * 31, 2 * SLOT * 61]

    @pytest.mark.parametrize("mask", REACH)
    @pytest.mark.parametrize("sizes", [[1] * 20, [20], [3, 10, 1, 6]], ids=len)
    def test_what_reaches_back_is_bounded(self, mask: str, sizes: list[int]) -> None:
        _, held = read(small(mask), tokens(2, 20), sizes)
        assert max(held) == held[-1] == 2 * 2 * SLOT * (REACH[mask] + 1)

    def test_each_layer_holds_what_its_own_mask_needs(self) -> None:
        length = 2 * FIRST_CAPACITY
        _, held = read(small("mixed"), tokens(1, length), [1] * length)
        assert held[-1] == SLOT * (REACH["window"] + 1) + SLOT * (length + 1)

    def test_a_layer_without_attention_holds_nothing(self) -> None:
        words = ["layer_kinds.still.attention.kind=none", 'layers.cycle=["still", "default"]']
        model = small("causal", *words)
        _, held = read(model, tokens(1, 2), [2])
        assert held == [SLOT * (FIRST_CAPACITY + 1)]


def test_what_is_kept_carries_no_gradient() -> None:
    model = build(SMALL)
    cache = model.new_cache()
    for piece in tokens(1, 6).split(3, 1):
        model(piece, cache=cache).logits.sum().backward()


class TestPieces:
    def test_prefixes_of_rows_are_given_once(self) -> None:
        model, row = small("prefix"), tokens(2, 12)
        prefix = torch.tensor([5, 2])
        expected = whole(model, row, prefix_lengths=prefix)
        cache = model.new_cache()
        with torch.no_grad():
            first = model(row[:, :6], cache=cache, prefix_lengths=prefix).logits
            rest = [model(row[:, i : i + 1], cache=cache).logits for i in range(6, 12)]
        found = torch.cat([first, *rest], 1)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


class TestRefused:
    @pytest.mark.parametrize("kind", ["full", "symmetric_window"])
    def test_a_mask_that_looks_ahead(self, kind: str) -> None:
        model = build(SMALL.override(f"attention.mask.kind={kind}"))
        with pytest.raises(UserError, match="lets tokens see what follows them") as caught:
            model(tokens(1, 3), cache=model.new_cache())
        assert len(caught.value.lines) == 1

    def test_a_prefix_that_comes_later(self) -> None:
        model = small("prefix")
        cache = model.new_cache()
        model(tokens(1, 4), cache=cache)
        with pytest.raises(
            ValueError, match="prefix_lengths: found in a later call; expected in the"
        ):
            model(tokens(1, 4), cache=cache, prefix_lengths=torch.tensor([4]))

    def test_another_batch(self) -> None:
        model = small("causal")
        cache = model.new_cache()
        model(tokens(2, 4), cache=cache)
        with pytest.raises(ValueError, match="tokens: found 3 rows; the cache holds 2"):
            model(tokens(3, 1), cache=cache)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"segment_ids": torch.zeros(1, 3, dtype=torch.long)},
            {"padding_mask": torch.ones(2, 2, dtype=torch.bool)},
            {"position_ids": torch.arange(7)},
        ],
        ids=lambda given: next(iter(given)),
    )
    def test_a_refused_call_leaves_the_cache_as_it_was(
        self, wrong: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        model, row = small("causal"), tokens(2, 8)
        cache = model.new_cache()
        given = {"segment_ids": torch.zeros(2, 4).long()} if "segment_ids" in wrong else {}
        with torch.no_grad():
            model(row[:, :4], cache=cache, **given)
            with pytest.raises(ValueError, match=next(iter(wrong))):
                model(row[:, 4:], cache=cache, **wrong)
            found = model(row[:, 4:], cache=cache, **given).logits
        torch.testing.assert_close(found, whole(model, row)[:, 4:], rtol=1e-9, atol=1e-9)


class TestSwitch:
    """LongRoPE has other angles for the whole of a text that is longer than its original length."""

    @pytest.fixture
    def model(self) -> Decoder:
        rope = [f"position.scaling.{x}" for x in ("kind=longrope", "original_length=6")]
        return small("causal", *rope, "position.scaling.long=[3.0, 2.0]")

    @pytest.mark.parametrize("sizes", [[6, 1], [3, 4], [1] * 7], ids=str)
    def test_a_text_is_not_carried_over(self, model: Decoder, sizes: list[int]) -> None:
        with pytest.raises(ValueError, match=r"row 0 has \d tokens in the cache and grows to 7"):
            read(model, tokens(2, sum(sizes)), sizes)

    def test_each_row_counts_its_real_tokens(self, model: Decoder) -> None:
        cache, row = model.new_cache(), tokens(2, 6)
        real = torch.tensor([[False, False, False, True, True, True], [True] * 6])
        model(row, cache=cache, padding_mask=real)
        one = torch.tensor([[True], [False]])
        for _ in range(3):
            model(row[:, :1], cache=cache, padding_mask=one)
        with pytest.raises(ValueError, match=r"row 0 has \d tokens in the cache and grows to 7"):
            model(row[:, :1], cache=cache, padding_mask=one)
        with pytest.raises(ValueError, match="row 1 has 6 tokens in the cache and grows to 7"):
            model(row[:, :1], cache=cache, padding_mask=~one)

    def test_what_was_refused_was_not_read(self, model: Decoder) -> None:
        cache, row = model.new_cache(), tokens(1, 6)
        model(row[:, :5], cache=cache)
        with pytest.raises(ValueError, match="give all of it to a new cache"):
            model(row, cache=cache)
        assert cache.num_read == 5
        found = model(row[:, 5:], cache=cache).logits[:, -1]
        torch.testing.assert_close(found, whole(model, row)[:, -1])


def test_kept_keys_turn_by_the_angles_of_the_text_so_far() -> None:
    """In one layer, where nothing else was made of earlier tokens, the last logits are those of the whole text."""
    words = ("position.scaling.kind=dynamic", "position.scaling.original_length=6")
    spec = ModelSpec(dim=16, num_layers=1, vocab_size=32, context_length=16)
    model = build(spec.override("attention.num_heads=2", *words), seed=1).double().eval()
    for parameter in model.parameters():
        parameter.data *= 3
    tokens = torch.randint(32, (2, 13), generator=torch.Generator().manual_seed(0))
    cache, read = model.new_cache(), 0
    with torch.no_grad():
        for number in (5, 4, 1, 1, 2):
            found = model(tokens[:, read : read + number], cache=cache).logits[:, -1]
            read += number
            torch.testing.assert_close(found, model(tokens[:, :read]).logits[:, -1])
