"""BigBird's blocks beside their sentence, asked of every pair of tokens."""

from itertools import product

import numpy as np
import pytest
import torch

from archwright.classic.parts.big_bird import BigBird as Pattern
from archwright.classic.spec.big_bird import BigBird
from archwright.parts.masks import AttentionMask, Causal, pairs
from archwright.parts.token_layout import token_layout
from archwright.testing.mask_laws import check_members
from tests.parts.test_masks import sees


class TestBigBird:
    """Blocks of which the last one counts; their random ones are held against the library in tests/hf."""

    @pytest.mark.parametrize("random", ["drawn", "first"])
    @pytest.mark.parametrize(("size", "number"), [(1, 0), (1, 1), (2, 1), (3, 2)])
    def test_each_head_sees_what_its_sentence_says(
        self, size: int, number: int, random: str
    ) -> None:
        choice = BigBird.model_validate(
            {"block_size": size, "num_random": number, "random": random}
        )
        pattern = Pattern(choice, 2, 3)
        whole = (5 + 2 * number) * size
        for length in (1, whole, whole + 1, 2 * whole):
            layout = token_layout(torch.zeros(1, length, dtype=torch.long))
            seen = AttentionMask(pattern, layout).dense[0].expand(2, -1, -1)
            expected = torch.zeros_like(seen)
            for h, q, k in product(range(2), range(length), range(length)):
                expected[h, q, k] = sees(choice, q, k, h, 2, length, layer=3)
            assert torch.equal(seen, expected)
            assert pairs(pattern, length) == expected.sum().item() / 2
            check_members(pattern, length)

    def test_random_blocks_are_none_that_is_seen_already(self) -> None:
        pattern = Pattern(BigBird(block_size=4, num_random=3), 4, 2)
        drawn = pattern.drawn(64)
        for head, block in product(range(4), range(1, 63)):
            chosen = drawn[head, block].tolist()
            assert len({*chosen}) == 3
            assert not {*chosen} & {0, block - 1, block, block + 1, 63}
        others = Pattern(BigBird(block_size=4, num_random=3), 4, 3).drawn(64)
        assert not torch.equal(drawn, others)
        assert not torch.equal(drawn[0], drawn[1])
        more = pattern.drawn(1000)
        assert torch.equal(more[:, :64], drawn[:, :64])

    def test_pairs_grow_with_the_length(self) -> None:
        pattern = Pattern(BigBird(block_size=4, num_random=1), 2)
        counts = [pairs(pattern, n) for n in (1000, 2000, 4000)]
        assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])

    def test_they_follow_the_generator_of_their_layer(self) -> None:
        """Of the first block that has some, and of the first head, beside the permutation that numpy draws first."""
        for layer in (1, 4):
            first = np.random.RandomState(layer - 1).permutation(11)
            expected = [block for block in first if block not in (0, 1, 2, 9, 10)][:3]
            drawn = Pattern(BigBird(num_random=3), 2, layer).drawn(20)
            assert drawn[0, 1].tolist() == expected

    def test_the_first_block_stands_for_random_ones(self) -> None:
        choice, length = BigBird(block_size=2, num_random=2, random="first"), 31
        layout = token_layout(torch.zeros(1, length, dtype=torch.long))
        view = AttentionMask(Pattern(choice, 1), layout)
        found = view.log_times(0, length, 0, length)[0, 0].exp()
        for q, k in product(range(length), repeat=2):
            several = k < 2 <= q and q // 2 < 15
            assert found[q, k].item() == pytest.approx(3 if several else 1)
        assert not Causal().repeats
