"""Masks beside their sentences, asked of every pair of tokens."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from archwright.classic.spec import big_bird, longformer
from archwright.parts import masks
from archwright.parts.masks import (
    MASKS,
    AttentionMask,
    Causal,
    Full,
    MaskPattern,
    Window,
    pairs,
    pattern_of,
)
from archwright.parts.token_layout import token_layout
from archwright.spec import masks as spec
from archwright.spec.errors import UserError
from archwright.testing.law import Broken
from archwright.testing.mask_laws import LENGTHS, check_members


@lru_cache
def random_blocks(mask: big_bird.BigBird, num_heads: int, layer: int) -> list[list[list[int]]]:
    """Return the random blocks of each head and block, of short texts."""
    found: list[list[list[int]]] = (
        MASKS[big_bird.BigBird](mask, num_heads, layer).drawn(64).tolist()
    )
    return found


def sees(
    mask: spec.Mask,
    query: int,
    key: int,
    head: int = 0,
    num_heads: int = 1,
    length: int = 0,
    layer: int = 1,
) -> bool:
    """Tell what the sentence of a mask says; of one by which the end of a text counts, in a text of this length."""
    match mask:
        case big_bird.BigBird(block_size=size, num_random=number):
            last, (a, b) = (length - 1) // size, (query // size, key // size)
            drawn = []
            if mask.differs_by_head:
                drawn = random_blocks(mask, num_heads, layer)[head][a]
            short = length <= (5 + 2 * number) * size
            return short or abs(a - b) < 2 or bool({a, b} & {0, last}) or b in drawn
        case spec.BlockSparse(block_size=size, local_blocks=near, stride=stride, per_head=differ):
            offset = head * max(1, stride // num_heads) if differ else 0
            columns = [n for n in range(100) if (n + 1 + offset) % stride == 0]
            block = key // size
            return key <= query and (block > query // size - near or block in columns)
        case spec.BlockLocal(block_size=size, shift=shift, num_global=few):
            low, high = sorted((query, key))
            borders = range(few - shift, high + 1, size)  # where blocks begin
            return low < few or not any(low < border for border in borders)
        case spec.Causal():
            return key <= query
        case spec.Full():
            return True
        case spec.Prefix(size=size):
            return key <= query or (query < size and key < size)
        case spec.Window(size=size):
            return key in range(query - size + 1, query + 1)
        case spec.SymmetricWindow(radius=radius):
            return key in range(query - radius, query + radius + 1)
        case spec.DilatedWindow(size=size, dilation=step, dilated_heads=few):
            step = step if few == "all" or num_heads - head <= few else 1
            return key in [query - i * step for i in range(size)]
        case longformer.Longformer(radius=radius, dilation=step, dilated_heads=few, num_global=n):
            step = step if few == "all" or num_heads - head <= few else 1
            near = range(query - radius * step, query + radius * step + 1, step)
            return key in near or key < n or query < n
        case spec.SegmentMemory(size=size, memory=memory):
            return key in range(query // size * size - memory, query + 1)
        case spec.Chunked(size=size, chunks_before=before):
            return key in range(query - query % size - before * size, query + 1)
        case spec.WindowGlobal(size=size, num_global=few):
            return key <= query and (key in range(query - size + 1, query + 1) or key < few)
        case spec.Strided(stride=stride):
            return key <= query and (query - key < stride or (query - key) % stride == 0)
        case spec.Fixed(stride=stride, num_summary=few):
            summaries = [i for i in range(query + 1) if stride - i % stride <= few]
            return key <= query and (key // stride == query // stride or key in summaries)
    raise AssertionError(mask)


CHOICES = [
    spec.Causal(),
    spec.Full(),
    *[spec.Prefix(size=n) for n in (1, 3, 40)],
    *[spec.Window(size=n) for n in (1, 2, 3, 7, 40)],
    *[spec.SymmetricWindow(radius=n) for n in (0, 1, 4, 40)],
    *[spec.DilatedWindow(size=n, dilation=d) for n, d in ((1, 3), (3, 1), (3, 2), (2, 5), (40, 3))],
    *[
        longformer.Longformer(radius=n, dilation=d, num_global=g)
        for n, d, g in (
            (1, 1, 0),
            (1, 2, 1),
            (2, 1, 0),
            (3, 1, 2),
            (2, 3, 0),
            (2, 3, 4),
            (9, 2, 40),
        )
    ],
    longformer.Longformer(radius=2, dilation=3, dilated_heads=1),
    *[spec.Chunked(size=n) for n in (1, 3, 4, 40)],
    *[
        spec.SegmentMemory(size=n, memory=m)
        for n, m in ((1, 0), (1, 3), (3, 0), (3, 2), (4, 5), (40, 3), (5, 40))
    ],
    *[spec.Chunked(size=n, chunks_before=b) for n, b in ((1, 2), (3, 1), (2, 3), (40, 1))],
    *[spec.WindowGlobal(size=n, num_global=g) for n, g in ((1, 1), (3, 2), (2, 7), (40, 40))],
    *[spec.Strided(stride=n) for n in (1, 3, 5, 40)],
    *[spec.Fixed(stride=n, num_summary=c) for n, c in ((1, 1), (3, 1), (4, 2), (3, 9), (40, 3))],
    *[
        spec.BlockSparse(block_size=b, local_blocks=n, stride=s, per_head=differ)
        for b, n, s, differ in (
            (1, 1, 1, True),
            (2, 1, 3, False),
            (3, 2, 2, True),
            (1, 2, 7, True),
            (40, 1, 2, True),
        )
    ],
    *[
        spec.BlockLocal(block_size=b, shift=s, num_global=g)
        for b, s, g in (
            (1, 0, 0),
            (3, 0, 0),
            (4, 2, 0),
            (3, 7, 0),
            (3, 0, 2),
            (4, 2, 3),
            (40, 20, 5),
            (2, 1, 40),
        )
    ],
]
PATTERNS = pytest.mark.parametrize(
    ("choice", "pattern"),
    [pytest.param(choice, MASKS[type(choice)](choice), id=str(choice)) for choice in CHOICES],
)


def test_all_masks_are_tested() -> None:
    apart = {big_bird.BigBird}  # of which the end of a text counts
    assert {type(choice) for choice in CHOICES} | apart == {
        mask for mask in MASKS if mask.__module__.startswith("archwright.")
    }


@PATTERNS
def test_the_predicate(choice: spec.Mask, pattern: MaskPattern) -> None:
    index = torch.arange(12)
    seen = pattern.visible(index[:, None], index[None])
    for q, k in product(range(12), repeat=2):
        assert seen[q, k].item() == sees(choice, q, k)


@PATTERNS
def test_a_window_counts_the_query_s_own_key(choice: spec.Mask, pattern: MaskPattern) -> None:
    seen = int(pattern.visible(torch.tensor(50), torch.arange(100)).sum())
    assert seen == sum(sees(choice, 50, key) for key in range(100))
    if isinstance(choice, spec.Window):
        assert seen == choice.size


@PATTERNS
@pytest.mark.parametrize("length", LENGTHS)
def test_ranges_and_pairs_follow_visible(
    choice: spec.Mask, pattern: MaskPattern, length: int
) -> None:
    check_members(pattern, length)


@PATTERNS
def test_ranges_are_no_larger_than_needed(choice: spec.Mask, pattern: MaskPattern) -> None:
    """They end at a visible key. Starts may be early for gaps near the start of a document."""
    gaps = spec.DilatedWindow, longformer.Longformer, spec.Strided, spec.Fixed, spec.BlockSparse
    for length in (1, 2, 13):
        for first, last in product(range(length), repeat=2):
            if first <= last:
                queries = range(first, last + 1)
                keys = {k for k in range(length) if any(sees(choice, q, k) for q in queries)}
                for start, stop in pattern.ranges(first, last, length):
                    assert isinstance(choice, gaps) or (start in keys and stop - 1 in keys)


@PATTERNS
def test_the_number_of_pairs(choice: spec.Mask, pattern: MaskPattern) -> None:
    for length in (1, 2, 3, 8, 41):
        expected = sum(sees(choice, q, k) for q, k in product(range(length), repeat=2))
        assert pairs(pattern, length) == expected


@given(st.data())
@settings(deadline=None, max_examples=50)
def test_members_follow_visible_for_all_sizes(data: st.DataObject) -> None:
    """Sizes above and below the length of a document, and heads with different masks."""
    sizes, length = st.integers(1, 50), data.draw(st.integers(1, 90))
    draw = lambda: data.draw(sizes)  # noqa: E731
    windows = {"radius": draw(), "dilation": draw(), "num_global": draw() - 1}
    choices = [
        spec.Prefix(size=draw()),
        spec.Window(size=draw()),
        spec.SymmetricWindow(radius=draw()),
        spec.DilatedWindow(size=draw(), dilation=draw(), dilated_heads=1),
        longformer.Longformer.model_validate({**windows, "dilated_heads": 2}),
        spec.SegmentMemory(size=draw(), memory=draw()),
        spec.Chunked(size=draw(), chunks_before=draw() % 3),
        spec.WindowGlobal(size=draw(), num_global=draw()),
        spec.Strided(stride=draw()),
        spec.Fixed(stride=draw(), num_summary=draw()),
        spec.BlockSparse(block_size=draw(), local_blocks=draw() % 4 + 1, stride=draw()),
        spec.BlockLocal(block_size=draw(), shift=draw(), num_global=draw() - 1),
        big_bird.BigBird(block_size=draw() % 4 + 1, num_random=draw() % 3),
    ]
    check_members(pattern_of(data.draw(st.sampled_from(choices)), 3), length)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pairs", lambda length: length + 1),
        ("ranges", lambda first, last, length: [(first, last + 1)]),
        ("ranges", lambda first, last, length: [(first, last + 1), (0, first)]),
        ("lookback", 2),
        ("lookahead", -1),
        ("visible", lambda query, key: (key < query) & (key > query - 4)),
    ],
)
def test_a_wrong_member_is_named(name: str, value: object) -> None:
    pattern = Window(spec.Window(size=4))
    check_members(pattern, 13)
    setattr(pattern, name, value)
    with pytest.raises(Broken, match=name):
        check_members(pattern, 13)


class Alternate(MaskPattern):
    """key <= query, with an even distance; no optional member."""

    def visible(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & ((query - key) % 2 == 0)


class AlternateWindow(Alternate):
    """query - key in {0, 2, ..., 10}."""

    lookback = 10

    def visible(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return super().visible(query, key) & (query - key <= 10)


def test_pairs_without_a_formula_are_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for pattern in (Alternate(), AlternateWindow()):
        for length in LENGTHS:
            check_members(pattern, length)
    assert pairs(Alternate(), 1000) == 500 * 501
    monkeypatch.setattr(masks, "COUNTED", 1000)
    assert pairs(AlternateWindow(), 3000) == 6 * 3000 - 2 * (5 + 4 + 3 + 2 + 1)  # fewer pairs
    with pytest.raises(UserError, match=r"Alternate: found no pairs\(length\), and 3,001 tokens"):
        pairs(Alternate(), 3001)


def test_pairs_of_a_billion_tokens_are_counted_at_once() -> None:
    length = 2**30
    assert pairs(Causal(spec.Causal()), length) == length * (length + 1) // 2
    window = pairs(Window(spec.Window(size=4096)), length)
    assert window == 4096 * length - 4096 * 4095 // 2


class TestDilatedHeads:
    """Windows that only the last heads see with gaps."""

    @pytest.mark.parametrize("num_heads", [1, 2, 3, 5])
    @pytest.mark.parametrize("few", [1, 2, 9])
    @pytest.mark.parametrize(
        "choice",
        [
            spec.DilatedWindow(size=3, dilation=4),
            spec.DilatedWindow(size=40, dilation=2),
            longformer.Longformer(radius=2, dilation=3, num_global=0),
            longformer.Longformer(radius=2, dilation=3, num_global=5),
        ],
        ids=str,
    )
    def test_each_head_sees_what_its_sentence_says(
        self, choice: spec.Mask, few: int, num_heads: int
    ) -> None:
        choice = choice.model_copy(update={"dilated_heads": few})
        each_head_is_as_told(choice, num_heads)

    def test_heads_that_are_alike_have_one_mask(self) -> None:
        assert not spec.DilatedWindow().differs_by_head
        assert not longformer.Longformer().differs_by_head


def each_head_is_as_told(choice: spec.Mask, num_heads: int) -> None:
    pattern, length = MASKS[type(choice)](choice, num_heads), 31
    view = AttentionMask(pattern, token_layout(torch.zeros(2, length, dtype=torch.long)))
    seen = torch.zeros(num_heads, length, length, dtype=torch.bool)
    for h, q, k in product(range(num_heads), range(length), range(length)):
        seen[h, q, k] = sees(choice, q, k, h, num_heads)
    assert torch.equal(view.dense[0].expand(num_heads, -1, -1), seen)
    assert pairs(pattern, length) == pytest.approx(seen.sum().item() / num_heads)
    check_members(pattern, length)


class TestHeads:
    """Block-sparse masks, in which each head has columns of its own."""

    @pytest.mark.parametrize("num_heads", [1, 2, 3, 8])
    @pytest.mark.parametrize(
        ("size", "near", "stride"), [(1, 1, 2), (2, 1, 3), (3, 2, 4), (2, 2, 9)]
    )
    def test_each_head_sees_what_its_sentence_says(
        self, size: int, near: int, stride: int, num_heads: int
    ) -> None:
        choice = spec.BlockSparse(block_size=size, local_blocks=near, stride=stride)
        each_head_is_as_told(choice, num_heads)

    @pytest.mark.parametrize(("num_heads", "stride"), [(32, 8), (4, 8), (3, 8), (5, 2)])
    def test_the_matrices_of_phi_3_small(self, num_heads: int, stride: int) -> None:
        """A matrix of blocks for each head, blown up to tokens and cut along the diagonal."""
        size, near, blocks = 4, 3, 20
        choice = spec.BlockSparse(block_size=size, local_blocks=near, stride=stride)
        view = AttentionMask(
            MASKS[type(choice)](choice, num_heads),
            token_layout(torch.zeros(1, size * blocks, dtype=torch.long)),
        )
        step = max(1, stride // num_heads)
        for head in range(num_heads):
            matrix = np.zeros((blocks, blocks))
            for q in range(blocks):
                matrix[q, max(0, q - near + 1) : q + 1] = 1
                first = (stride - 1 - head * step) % stride
                matrix[q, first : q + 1 : stride] = 1
            expected = np.tril(np.kron(matrix, np.ones((size, size)))) > 0
            np.testing.assert_array_equal(view.dense[0, head].numpy(), expected)

    def test_heads_that_are_alike_have_one_mask(self) -> None:
        choice = spec.BlockSparse(per_head=False)
        view = AttentionMask(
            MASKS[type(choice)](choice, 8), token_layout(torch.zeros(1, 5, dtype=torch.long))
        )
        assert view.dense.shape == (1, 1, 5, 5)


@st.composite
def views(draw: st.DrawFn) -> tuple[spec.Mask, AttentionMask, list[list[int]], list[list[bool]]]:
    """Draw a mask over rows with documents and padding, wherever it stands."""
    length = draw(st.integers(1, 9))
    rows = draw(st.integers(1, 3))
    choice = draw(st.sampled_from(CHOICES))
    cuts = st.lists(st.integers(0, 1), min_size=length, max_size=length)
    documents = draw(st.none() | st.lists(cuts, min_size=rows, max_size=rows))
    if documents is not None:  # each document one stretch
        documents = [[sum(row[: i + 1]) for i in range(length)] for row in documents]
    real = st.lists(st.booleans(), min_size=length, max_size=length)
    valid = draw(st.none() | st.lists(real, min_size=rows, max_size=rows))
    where = token_layout(
        torch.zeros(rows, length, dtype=torch.long),
        segment_ids=None if documents is None else torch.tensor(documents),
        padding_mask=None if valid is None else torch.tensor(valid),
    )
    documents = documents or [[0] * length] * rows
    return (
        choice,
        AttentionMask(MASKS[type(choice)](choice), where),
        documents,
        valid or [[True] * length] * rows,
    )


def expected(
    choice: spec.Mask, documents: list[int], valid: list[bool], query: int, key: int
) -> bool:
    """Say whether a query sees a key: as if there were no padding, and within its document."""
    if not valid[query]:
        return query == key
    if not valid[key] or documents[query] != documents[key]:
        return False
    start = documents.index(documents[query])  # the places the tokens would have by themselves
    return sees(choice, *(sum(valid[start:i]) for i in (query, key)))


@pytest.mark.slow
@given(views())
def test_documents_and_padding_narrow_a_mask(
    drawn: tuple[spec.Mask, AttentionMask, list[list[int]], list[list[bool]]],
) -> None:
    choice, view, documents, valid = drawn
    length = view.layout.length
    dense = view.dense.expand(len(documents), 1, length, length)
    for row, (of_row, real) in enumerate(zip(documents, valid, strict=True)):
        for q, k in product(range(length), repeat=2):
            assert dense[row, 0, q, k].item() == expected(choice, of_row, real, q, k)
    assert dense.any(-1).all()  # no row of weights is empty


@pytest.mark.slow
@given(views(), st.data())
def test_blocks_are_pieces_of_the_whole(
    drawn: tuple[spec.Mask, AttentionMask, list[list[int]], list[list[bool]]], data: st.DataObject
) -> None:
    _, view, _, _ = drawn
    length = view.layout.length
    first = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(first + 1, length))
    start, end = view.keys(first, stop)
    assert torch.equal(view.block(first, stop, start, end), view.dense[:, :, first:stop, start:end])
    assert not view.dense[:, :, first:stop, :start].any()
    assert not view.dense[:, :, first:stop, end:].any()


def test_padding_narrows_no_mask_that_looks_ahead() -> None:
    real = torch.tensor([[False, True, True, True, True]])
    view = AttentionMask(Full(), token_layout(real.long(), padding_mask=real))
    assert view.keys(0, 3) == (0, 5)
    assert view.dense[0, 0].tolist() == [
        [True, False, False, False, False],
        *[[False, True, True, True, True]] * 4,
    ]


def test_a_mask_that_looks_ahead_sees_no_padding_behind_a_text() -> None:
    real = torch.tensor([[True, True, False, False]])
    view = AttentionMask(Full(), token_layout(real.long(), padding_mask=real))
    assert view.dense[0, 0].tolist() == [
        *[[True, True, False, False]] * 2,
        [False, False, True, False],
        [False, False, False, True],
    ]


def test_which_views_are_plain_causal() -> None:
    tokens = torch.zeros(2, 4, dtype=torch.long)
    real = torch.ones(2, 4, dtype=torch.bool)
    causal = Causal(spec.Causal())
    assert AttentionMask(causal, token_layout(tokens)).is_plain_causal
    assert AttentionMask(causal, token_layout(tokens, position_ids=torch.arange(4))).is_plain_causal
    assert not AttentionMask(causal, token_layout(tokens, padding_mask=real)).is_plain_causal
    assert not AttentionMask(causal, token_layout(tokens, segment_ids=tokens)).is_plain_causal
    assert not AttentionMask(Window(spec.Window()), token_layout(tokens)).is_plain_causal


@dataclass
class Equal(Alternate):
    """A pattern from outside with equality but no hash."""


class TestAcrossPasses:
    """Results that depend only on a pattern, a length and a device."""

    def view(self, pattern: MaskPattern, length: int = 6, **given: torch.Tensor) -> AttentionMask:
        return AttentionMask(pattern, token_layout(torch.zeros(2, length).long(), **given))

    def test_later_passes_find_the_dense_mask(self) -> None:
        pattern, other = Window(spec.Window(size=3)), Window(spec.Window(size=3))
        first = self.view(pattern).dense
        assert self.view(pattern).dense is first
        assert self.view(pattern, 7).dense is not first
        assert self.view(other).dense is not first
        ids = torch.tensor([[0, 0, 1, 1, 1, 1]] * 2)
        packed = self.view(pattern, segment_ids=ids)
        assert packed.dense is packed.dense
        assert not torch.equal(packed.dense[0], first[0])
        explicit = AttentionMask(
            pattern, self.view(pattern).layout, given=first.new_ones(1, 1, 6, 6)
        )
        assert explicit.dense.all()

    def test_there_is_a_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(masks, "CACHED", 3)
        pattern = Window(spec.Window(size=3))
        first = self.view(pattern, 1).dense
        for length in range(2, 9):
            assert self.view(pattern, 1).dense is first  # in use, so it remains
            _ = self.view(pattern, length).dense
        assert len(masks._ACROSS_PASSES) == 3
        monkeypatch.setattr(masks, "DENSE", 35)
        large = self.view(pattern)
        assert large.dense is not self.view(pattern).dense

    def test_fake_tensors_are_not_found_again(self) -> None:
        pattern = Window(spec.Window(size=3))
        with FakeTensorMode():
            assert isinstance(self.view(pattern).dense, FakeTensor)
        assert not isinstance(self.view(pattern).dense, FakeTensor)

    def test_masks_of_other_classes_are_computed_in_each_pass(self) -> None:
        class Beside(AttentionMask):
            """A mask with keys before the tokens."""

        layout = token_layout(torch.zeros(1, 5, dtype=torch.long))
        assert AttentionMask(Causal(spec.Causal()), layout).is_plain
        assert not Beside(Causal(spec.Causal()), layout).is_plain

    def test_patterns_without_a_hash_are_computed_in_each_pass(self) -> None:
        pattern = Equal()
        assert self.view(pattern).dense is not self.view(pattern).dense
        assert pairs(pattern, 5) == 9
