"""Every held-out token is predicted once, in its own document, and every byte counted once."""

import math
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archwright.data.eval_windows import HeldOut, bits_per_byte
from archwright.data.inputs import IGNORE, Batch
from archwright.data.prepare import prepare_documents
from archwright.data.store import TokenStore
from archwright.spec.data import DataSpec
from archwright.spec.errors import UserError
from archwright.text.bpe import raw_bytes
from archwright.text.bpe_training import train_bpe
from archwright.text.corpus import open_texts
from archwright.text.selfcheck import PROBE
from archwright.text.tokenizer import Tokenizer

END = "<e>"
RAW = Tokenizer(raw_bytes([END]), END)


def stored(tmp_path: Path, texts: list[str], tokenizer: Tokenizer = RAW) -> TokenStore:
    path = tmp_path / "held_out.txt"
    path.write_bytes("|".join(texts).encode())
    return prepare_documents(open_texts((str(path),), DataSpec(separator="|")), tokenizer)


def lengths_of(batch: Batch) -> list[int]:
    """Return how many tokens each row has before padding."""
    mask = batch.inputs.padding_mask
    lengths = np.full(len(batch.targets), batch.targets.shape[1]) if mask is None else mask.sum(1)
    found: list[int] = lengths.tolist()
    return found


def letters(n: int) -> str:
    """Text in which each pair of neighbours tells its place (for n up to 700)."""
    return "".join(chr(0x61 + i // 26 % 26) + chr(0x61 + i % 26) for i in range(n))[:n]


@pytest.mark.slow
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=6),
    context=st.integers(1, 24),
    stride=st.integers(1, 24),
    batch_size=st.integers(1, 5),
)
def test_each_token_is_predicted_once_with_enough_context(
    tmp_path: Path, lengths: list[int], context: int, stride: int, batch_size: int
) -> None:
    stride = min(stride, context)
    store = stored(tmp_path, [letters(n) for n in lengths])
    held_out = HeldOut(store, context, batch_size, stride)
    assert held_out.num_tokens == held_out.num_bytes == sum(lengths)
    # Find each prediction again by its context: window content must be a part of one document.
    whole = [store.document(i).tolist() for i in range(store.num_documents)]
    seen: Counter[tuple[int, ...]] = Counter()
    batches = list(held_out)
    assert len(batches) == len(held_out)
    for batch in batches:
        assert batch.inputs.tokens.shape == batch.targets.shape
        assert len(batch.inputs.tokens) <= batch_size
        for row, targets, length in zip(
            batch.inputs.tokens, batch.targets, lengths_of(batch), strict=True
        ):
            assert (targets[length:] == IGNORE).all()
            places = np.flatnonzero(targets != IGNORE)
            assert (np.diff(places) == 1).all()
            for place in places:
                before = tuple(row[: place + 1].tolist())
                assert before[0] == store.end_of_text or place >= context - stride
                seen[(*before, int(targets[place]))] += 1
    for document in whole:
        for i in range(1, len(document)):
            found = [k for k in seen if seen[k] and len(k) <= i + 1]
            found = [k for k in found if tuple(document[i + 1 - len(k) : i + 1]) == k]
            assert found
            seen[max(found, key=len)] -= 1
    assert not +seen


def test_windows_overlap_by_context_minus_stride(tmp_path: Path) -> None:
    store = stored(tmp_path, ["abcdefghij"])
    (batch,) = HeldOut(store, 4, 8, stride=2)
    rows = [
        bytes(min(t, 46) if t == 256 else t for t in row).decode() for row in batch.inputs.tokens
    ]
    targets = ["".join("-" if t == IGNORE else chr(t) for t in row) for row in batch.targets]
    assert rows == [".abc", "bcde", "defg", "fghi"]
    assert targets == ["abcd", "--ef", "--gh", "--ij"]


def test_the_last_window_is_full_and_counts_only_the_rest(tmp_path: Path) -> None:
    store = stored(tmp_path, ["abcdefghi"])
    (batch,) = HeldOut(store, 4, 8, stride=2)
    targets = ["".join("-" if t == IGNORE else chr(t) for t in row) for row in batch.targets]
    assert targets == ["abcd", "--ef", "--gh", "---i"]
    assert lengths_of(batch) == [4, 4, 4, 4]


def test_short_documents_are_padded_at_the_right(tmp_path: Path) -> None:
    store = stored(tmp_path, ["abc", "abcdefgh", "a"])
    (batch,) = HeldOut(store, 6, 8, stride=6)
    assert lengths_of(batch) == [6, 6, 3, 1]
    assert batch.inputs.padding_mask is not None
    assert (batch.inputs.tokens[~batch.inputs.padding_mask] == 256).all()
    assert (batch.targets != IGNORE).sum() == 12


def test_the_end_of_a_document_is_never_predicted(tmp_path: Path) -> None:
    store = stored(tmp_path, ["abc", "de", "f" * 40])
    for batch in HeldOut(store, 8, 4):
        assert store.end_of_text not in batch.targets


@pytest.mark.parametrize("cap", [1, 7, 50, 200, 333, 10_000])
def test_a_cap_keeps_bytes_exact(tmp_path: Path, cap: int) -> None:
    tokenizer = Tokenizer(train_bpe([PROBE], 500, [END]), END)
    texts = [PROBE[3 * i :].replace("|", "") for i in range(30)]
    store = stored(tmp_path, texts, tokenizer)
    held_out = HeldOut(store, 16, 4, max_tokens=cap, token_lengths=tokenizer.token_lengths)
    assert held_out.num_tokens <= cap
    assert held_out.num_tokens >= min(cap, len(store) - 30)
    predicted = np.concatenate([b.targets[b.targets != IGNORE] for b in held_out])
    assert len(predicted) == held_out.num_tokens
    assert tokenizer.token_bytes is not None
    assert held_out.num_bytes == sum(len(tokenizer.token_bytes[t]) for t in predicted)


def test_a_cap_spreads_over_the_text(tmp_path: Path) -> None:
    store = stored(tmp_path, [letters(20) for _ in range(1000)])
    held_out = HeldOut(store, 16, 4, max_tokens=400, token_lengths=RAW.token_lengths)
    starts = [row.start for row in held_out._rows]
    documents = sorted(set(np.searchsorted(store.offsets, starts, "right").tolist()))
    assert np.diff([0, *documents, 1000]).max() < 100


def test_a_cap_takes_each_document_by_its_share(tmp_path: Path) -> None:
    store = stored(tmp_path, ["x" * 5000] + [letters(50) for _ in range(100)])
    held_out = HeldOut(store, 16, 4, max_tokens=1000, token_lengths=RAW.token_lengths)
    assert held_out.num_tokens == 1000
    long = sum(row.counted for row in held_out._rows if row.start < store.offsets[1])
    assert 400 < long < 600


@pytest.mark.parametrize("stride", [4, 7, 16])
def test_a_sample_is_of_the_windows_over_all_text(tmp_path: Path, stride: int) -> None:
    store = stored(tmp_path, [letters(n) for n in (1, 300, 16, 17, 90, 2)])
    whole = {*HeldOut(store, 16, 4, stride)._rows}
    assert sum(row.counted for row in whole) == len(store) - store.num_documents
    for cap in (1, 33, 200):
        some = HeldOut(store, 16, 4, stride, cap, RAW.token_lengths)
        assert len({*some._rows} - whole) <= 1, "but for the last, which is cut"
    assert {*HeldOut(store, 16, 4, stride, 1000, RAW.token_lengths)._rows} == whole


def test_a_sample_of_a_long_text_needs_the_memory_of_the_sample(tmp_path: Path) -> None:
    peaks = []
    for n in (1000, 100_000):
        store = stored(tmp_path, ["x" * n])
        tracemalloc.start()
        HeldOut(store, 4, 4, stride=1, max_tokens=100, token_lengths=RAW.token_lengths)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] + 10_000, "of a window for each token, it would be 100 times"


def test_texts_are_what_is_predicted(tmp_path: Path) -> None:
    store = stored(tmp_path, [letters(n) for n in (1, 50, 7, 33)])
    whole = [text.tolist() for text in HeldOut(store, 16, 4).texts()]
    assert whole == [store.document(i)[1:].tolist() for i in range(4)]
    some = HeldOut(store, 16, 4, max_tokens=40, token_lengths=RAW.token_lengths)
    assert sum(len(text) for text in some.texts()) == some.num_tokens == 40


def test_without_token_lengths_documents_stay_whole(tmp_path: Path) -> None:
    store = stored(tmp_path, [letters(n) for n in (50, 60, 70, 80)])
    held_out = HeldOut(store, 16, 4, max_tokens=140)
    assert held_out.num_bytes == held_out.num_tokens in {50, 60, 70, 80, 110, 120, 130, 140}
    assert HeldOut(store, 16, 4, max_tokens=10).num_tokens == 50


def pieces_of(
    store: TokenStore, tokenizer: Tokenizer, **options: int
) -> tuple[HeldOut, dict[int, bytes]]:
    """Windows over pieces of text, and the text of each piece by its number."""
    held_out = HeldOut(store, 16, 4, token_lengths=tokenizer.token_lengths, **options)
    sizes, found = held_out.window_bytes, dict[int, list[tuple[int, bytes]]]()
    assert sizes is not None
    for row, size in zip(held_out._rows, sizes, strict=True):
        text = b"".join(
            tokenizer.token_bytes[t] for t in store.read(row.stop - row.counted, row.stop)
        )
        assert len(text) == size
        found.setdefault(row.piece, []).append((row.start, text))
    assert held_out.num_bytes == sizes.sum()
    return held_out, {i: b"".join(text for _, text in sorted(texts)) for i, texts in found.items()}


@pytest.mark.parametrize("cap", [1, 200, 1000, 10_000])
def test_pieces_are_the_same_text_whatever_its_tokens(tmp_path: Path, cap: int) -> None:
    """A token belongs where its first byte is, so that a piece may begin and end a few bytes later."""
    tokenizer = Tokenizer(train_bpe([PROBE], 500, [END]), END)
    texts = [PROBE[3 * i :].replace("|", "") for i in range(10)]
    store = stored(tmp_path, texts, tokenizer)
    raw_store = stored(tmp_path, texts)
    held_out, pieces = pieces_of(store, tokenizer, max_bytes=cap)
    raw, raw_pieces = pieces_of(raw_store, RAW, max_bytes=cap)
    total = sum(len(text.encode()) for text in texts)
    assert min(cap, total) <= raw.num_bytes < cap + 8 * 16
    longest = max(map(len, tokenizer.token_bytes))
    assert abs(held_out.num_bytes - raw.num_bytes) <= 2 * longest * len(pieces)
    assert pieces.keys() == raw_pieces.keys()
    for i, piece in pieces.items():
        assert piece[longest:-longest] in raw_pieces[i]
    documents, numbers = held_out.places
    raw_documents, raw_numbers = raw.places
    assert {*zip(documents, numbers, strict=True)} == {
        *zip(raw_documents, raw_numbers, strict=True)
    }
    if cap >= total:
        assert held_out.num_bytes == raw.num_bytes == total


def test_pieces_spread_over_the_text(tmp_path: Path) -> None:
    store = stored(tmp_path, ["x" * 50_000] + [letters(500) for _ in range(100)])
    held_out = HeldOut(store, 16, 4, max_bytes=10_000, token_lengths=RAW.token_lengths)
    long = sum(row.counted for row in held_out._rows if row.start < store.offsets[1])
    assert 4000 < long < 6000
    starts = [row.start for row in held_out._rows if row.start < store.offsets[1]]
    assert np.diff(sorted(starts)).max() < 2500


def test_pieces_of_tokens_whose_bytes_are_not_known_are_refused(tmp_path: Path) -> None:
    store = stored(tmp_path, ["some text"])
    with pytest.raises(UserError, match="tokens without known bytes"):
        HeldOut(store, 8, 4, max_bytes=100)


def test_wrong_strides_are_refused(tmp_path: Path) -> None:
    store = stored(tmp_path, ["some text"])
    with pytest.raises(UserError, match=r"expected 1 to model.context_length \(8\), found 9"):
        HeldOut(store, 8, 4, stride=9)


def test_bits_per_byte_of_a_uniform_model_over_bytes_is_eight() -> None:
    assert bits_per_byte(1000 * math.log(256), 1000) == pytest.approx(8.0, abs=1e-12)


def test_bits_per_byte_does_not_depend_on_the_vocabulary(tmp_path: Path) -> None:
    """A model that spreads 3 bits over each byte gets 3, however its tokens are cut."""
    tokenizer = Tokenizer(train_bpe([PROBE], 500, [END]), END)
    texts = [PROBE.replace("|", ""), "more ünï text\n" * 30]
    for used in (RAW, tokenizer):
        store = stored(tmp_path, texts, used)
        held_out = HeldOut(store, 32, 4)
        assert used.token_lengths is not None
        counted = np.concatenate([b.targets[b.targets != IGNORE] for b in held_out])
        nats = float(used.token_lengths[counted].sum() * 3 * math.log(2))
        assert bits_per_byte(nats, held_out.num_bytes) == pytest.approx(3.0, abs=1e-12)
