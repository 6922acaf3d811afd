"""The batch of a step is a pure function of seed and step, and an epoch sees the text once."""

import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archwright.data.batches import Batches, share_of
from archwright.data.prepare import prepare_documents
from archwright.spec.data import DataSpec
from archwright.spec.errors import UserError
from archwright.text.bpe import raw_bytes
from archwright.text.corpus import open_texts
from archwright.text.tokenizer import Tokenizer


def test_rows_are_windows_and_targets_the_next_tokens() -> None:
    batches = Batches(np.arange(1000), 16, 4, seed=3)
    for step in range(50):
        batch = batches.at(step)
        assert batch.inputs.tokens.shape == batch.targets.shape == (4, 16)
        assert batch.inputs.tokens.dtype == batch.targets.dtype == np.int64
        assert batch.inputs.tokens.flags.c_contiguous
        assert batch.targets.flags.c_contiguous
        assert (batch.targets == batch.inputs.tokens + 1).all()
        assert (np.diff(batch.inputs.tokens, axis=1) == 1).all()
        assert batch.inputs.position_ids is None
        assert batch.inputs.segment_ids is None


@pytest.mark.slow
@settings(max_examples=60)
@given(num_tokens=st.integers(5, 400), context=st.integers(1, 40), seed=st.integers(0, 2**63 - 1))
def test_an_epoch_predicts_tokens_once_and_covers_all_but_its_ends(
    num_tokens: int, context: int, seed: int
) -> None:
    if num_tokens < context + 1:
        return
    batches = Batches(np.arange(num_tokens), context, 1, seed)
    for epoch in range(3):
        steps = range(epoch * batches.windows_per_epoch, (epoch + 1) * batches.windows_per_epoch)
        targets = np.concatenate([batches.at(step).targets[0] for step in steps])
        assert Counter(Counter(targets.tolist()).values()) == {1: len(targets)}
        assert targets.max() - targets.min() + 1 == len(targets)  # no gap
        assert num_tokens - 1 - len(targets) < 2 * context


@pytest.mark.parametrize("num_tokens", [320, 347, 383])
def test_offsets_and_ends_are_as_documented(num_tokens: int) -> None:
    """What docs/pieces.md says of residues, and of tokens at the ends."""
    context = 32
    n = (num_tokens - context) // context
    batches = Batches(np.arange(num_tokens), context, n, seed=1)  # an epoch at a time
    assert batches.windows_per_epoch == n

    residues = np.array([batches.at(epoch).inputs.tokens[0, 0] for epoch in range(2000)]) % context
    share = np.where(np.arange(context) < num_tokens % context, 2, 1)
    expected = 2000 * share / share.sum()
    counts = np.bincount(residues, minlength=context)
    assert ((counts - expected) ** 2 / expected).sum() < 2 * context + 10  # chi-squared

    times = np.zeros(num_tokens)
    for epoch in range(200):
        starts = batches.at(epoch).inputs.tokens[:, 0]
        assert len(set(starts % context)) == 1
        predicted = range(starts.min() + 1, starts.max() + context + 1)
        assert num_tokens - len(predicted) == context + num_tokens % context
        times[predicted] += 1
    assert times[0] == 0
    assert times[num_tokens // 2] == 200
    assert 0 < times[3] < times[20] < 200
    assert 0 < times[-4] < times[-20] < 200


def test_epochs_have_orders_and_offsets_of_their_own() -> None:
    batches = Batches(np.arange(10_000), 10, 1)
    n = batches.windows_per_epoch
    epochs = [[int(batches.at(e * n + i).inputs.tokens[0, 0]) for i in range(n)] for e in range(4)]
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert len({epoch[0] % 10 for epoch in epochs}) > 1
    assert all(len({start % 10 for start in epoch}) == 1 for epoch in epochs)


def test_over_the_epochs_every_token_is_a_target() -> None:
    batches = Batches(np.arange(103), 10, 1)
    seen = {int(t) for step in range(400) for t in batches.at(step).targets[0]}
    assert seen == set(range(1, 103))


def test_a_step_does_not_depend_on_what_was_asked_before() -> None:
    tokens = np.random.default_rng(0).integers(0, 100, 5000)
    batches = Batches(tokens, 32, 8, seed=5)
    forward = [batches.at(step).inputs.tokens for step in range(60)]
    again = Batches(tokens, 32, 8, seed=5)
    for step in reversed(range(60)):
        assert (again.at(step).inputs.tokens == forward[step]).all()


def test_seeds_give_other_batches() -> None:
    first = [
        Batches(np.arange(9000), 8, 4, seed).at(0).inputs.tokens.tolist() for seed in range(20)
    ]
    assert len({str(rows) for rows in first}) == 20


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_ranks_share_the_batch_of_one_process(world_size: int) -> None:
    tokens = np.random.default_rng(0).integers(0, 9, 3000)
    batches = Batches(tokens, 16, 8, packing="document_mask", end_of_text=0)
    for step in (0, 7, 100):
        whole = batches.at(step)
        parts = [whole[share_of(8, rank, world_size)] for rank in range(world_size)]
        assert (np.concatenate([part.targets for part in parts]) == whole.targets).all()
        assert whole.inputs.given().keys() == {"tokens", "position_ids", "segment_ids"}
        for name, array in whole.inputs.given().items():
            joined = np.concatenate([part.inputs.given()[name] for part in parts])
            assert (joined == array).all()


def test_a_batch_splits_into_parts_for_accumulation() -> None:
    tokens = np.random.default_rng(0).integers(0, 9, 3000)
    batch = Batches(tokens, 16, 8, packing="document_mask", end_of_text=0).at(1)
    parts = list(batch.split(4))
    assert [len(part.inputs.tokens) for part in parts] == [2, 2, 2, 2]
    assert (np.concatenate([part.targets for part in parts]) == batch.targets).all()
    assert parts[0].inputs.position_ids is not None
    assert Batches(tokens, 16, 8).at(1)[:2].inputs.position_ids is None


@settings(max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=30, max_size=200))
def test_documents_have_ids_and_positions_of_their_own(tokens: list[int]) -> None:
    batches = Batches(np.array(tokens), 12, 2, packing="document_mask", end_of_text=0)
    for step in range(5):
        batch = batches.at(step)
        assert batch.inputs.position_ids is not None
        assert batch.inputs.segment_ids is not None
        for row, positions, documents in zip(
            batch.inputs.tokens, batch.inputs.position_ids, batch.inputs.segment_ids, strict=True
        ):
            document, position = 0, -1
            for column, token in enumerate(row):
                if token == 0 and column:
                    document, position = document + 1, -1
                position += 1
                assert (documents[column], positions[column]) == (document, position)


def test_the_end_of_a_document_is_a_target_with_masks_too() -> None:
    tokens = np.array([0, 1, 2, 3] * 30)
    batch = Batches(tokens, 20, 2, packing="document_mask", end_of_text=0).at(0)
    assert (batch.targets[batch.inputs.tokens == 3] == 0).all()
    assert (batch.inputs.tokens == 3).any()


def test_documents_of_a_store_are_told_apart_by_its_own_end_of_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("|".join("x" * 9 for _ in range(20)))
    documents = open_texts((str(tmp_path / "a.txt"),), DataSpec(separator="|"))
    store = prepare_documents(documents, Tokenizer(raw_bytes(["<e>"]), "<e>"))
    batch = Batches(store, 30, 2, packing="document_mask").at(0)
    assert batch.inputs.position_ids is not None
    assert batch.inputs.position_ids.max() == 9
    assert (batch.inputs.position_ids[batch.inputs.tokens == 256] == 0).all()


def test_lengths_of_documents_are_those_of_an_epoch(tmp_path: Path) -> None:
    """Cut at windows, from one offset; batches cut elsewhere, so that single documents differ."""
    sizes = np.random.default_rng(0).integers(1, 90, 4000)
    (tmp_path / "a.txt").write_text("|".join("x" * size for size in sizes))
    documents = open_texts((str(tmp_path / "a.txt"),), DataSpec(separator="|"))
    store = prepare_documents(documents, Tokenizer(raw_bytes(["<e>"]), "<e>"))
    batches = Batches(store, 64, 1, packing="document_mask")
    lengths = batches.lengths
    assert lengths is not None
    assert (lengths.target, lengths.share) == (1.0, 1.0)
    squares = 0
    for step in range(batches.windows_per_epoch):
        ids = batches.at(step).inputs.segment_ids
        assert ids is not None
        squares += int((np.bincount(ids[0]) ** 2).sum())
    assert lengths.mean == pytest.approx(squares / batches.windows_per_epoch / 64, rel=0.02)
    assert Batches(store, 64, 1).lengths is None


def test_masks_without_an_end_of_text_are_refused() -> None:
    with pytest.raises(ValueError, match="end_of_text"):
        Batches(np.arange(100), 8, 2, packing="document_mask")


@pytest.mark.parametrize("num_tokens", [0, 1, 16])
def test_too_little_text_is_told_with_numbers(num_tokens: int) -> None:
    with pytest.raises(UserError) as caught:
        Batches(np.arange(num_tokens), 16, 4)
    assert f"17 tokens are needed (model.context_length + 1), there are {num_tokens}" in str(
        caught.value
    )
    assert "\n" not in str(caught.value)


def test_the_shortest_text_fills_batches() -> None:
    batches = Batches(np.arange(17), 16, 4)
    for step in range(9):
        assert (batches.at(step).inputs.tokens == np.arange(16)).all()


def test_a_batch_takes_less_than_a_millisecond() -> None:
    tokens = np.zeros(3_000_000, np.uint16)
    batches = Batches(tokens, 256, 16, packing="document_mask", end_of_text=1)
    seconds = []
    for step in range(100):
        started = time.perf_counter()
        batches.at(step)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 1e-3
