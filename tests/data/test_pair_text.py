"""Batches of pairs: a pure function of seed and step, each pair once in an epoch, the loss on the target alone."""

import numpy as np
import pytest

from archwright.data.inputs import IGNORE
from archwright.data.objectives import Examples, Vocabulary
from archwright.data.pair_text import PairBatches, PairText, PairWindows
from archwright.spec.errors import UserError
from archwright.spec.objectives import SequenceToSequence
from archwright.text.bpe import raw_bytes
from archwright.text.pairs import FilePairs, Pair, Pairs, SyntheticPairs
from archwright.text.tokenizer import Tokenizer

END = "<|endoftext|>"
TOKENIZER = Tokenizer(raw_bytes([END]), END)
EXAMPLES = Examples(SequenceToSequence(), Vocabulary.of(TOKENIZER))
PAIRS = [Pair("s" * (i % 7 + 1), f"t{i}", f"line {i + 1}") for i in range(10)]


def text(pairs: Pairs, context_length: int = 128) -> PairText:
    return PairText(pairs, TOKENIZER, context_length)


@pytest.fixture(params=["file", "synthetic"])
def pairs(request: pytest.FixtureRequest) -> Pairs:
    return FilePairs(PAIRS) if request.param == "file" else SyntheticPairs("train")


def test_a_batch_is_a_function_of_seed_and_step(pairs: Pairs) -> None:
    made = {
        (seed, step): PairBatches(text(pairs), EXAMPLES, 4, seed).at(step).targets.tolist()
        for seed in (0, 1)
        for step in (0, 5)
    }
    assert len({str(targets) for targets in made.values()}) == 4
    batches = PairBatches(text(pairs), EXAMPLES, 4, 1)
    assert batches.at(5).targets.tolist() == made[1, 5]


def test_an_epoch_has_each_pair_once() -> None:
    drawn = text(FilePairs(PAIRS)).drawn(0, np.arange(30))
    read = [TOKENIZER.decode(one.target) for one in drawn]
    epochs = [read[start : start + 10] for start in (0, 10, 20)]
    assert all(sorted(epoch) == sorted(pair.target for pair in PAIRS) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_lengths_are_those_of_batches() -> None:
    batches = PairBatches(text(FilePairs(PAIRS)), EXAMPLES, 10)
    lengths, inputs = batches.lengths, batches.at(0).inputs
    assert inputs.padding_mask is not None
    source = inputs.padding_mask.sum(1)
    assert lengths.mean == pytest.approx((source**2).sum() / source.sum())
    assert lengths.target == pytest.approx(
        30 / source.sum()
    )  # two characters, and the end of a text
    assert lengths.share == pytest.approx(source.sum() / (10 * 128))


def test_the_decoder_reads_and_predicts_the_target_alone(pairs: Pairs) -> None:
    words, end = text(pairs), TOKENIZER.end_of_text
    batch = PairBatches(words, EXAMPLES, 6).at(2)
    inputs = batch.inputs
    for i, one in enumerate(words.drawn(0, np.arange(12, 18))):
        source = inputs.tokens[i]
        if inputs.padding_mask is not None:
            source = source[inputs.padding_mask[i]]
        real = batch.targets[i] != IGNORE
        assert source.tolist() == [*one.source, end]
        assert batch.targets[i][real].tolist() == [*one.target, end]
        assert inputs.decoder_tokens[i][real].tolist() == [end, *one.target]
        if inputs.decoder_padding_mask is not None:
            assert (inputs.decoder_padding_mask[i] == real).all()


def test_windows_are_held_out_pairs_in_order_of_length() -> None:
    words = text(SyntheticPairs("held_out"))
    windows = PairWindows(words, EXAMPLES, 8, max_tokens=4000)
    numbers, _ = windows.places
    assert sorted(numbers) == [*range(len(numbers))]
    targets = [row[row != IGNORE] for batch in windows for row in batch.targets]
    assert len(windows) == -(-len(numbers) // 8)
    for number, target in zip(numbers, targets, strict=True):
        pair = words.pairs.pair(0, number)
        assert TOKENIZER.decode(target[:-1]) == pair.target
    assert windows.num_tokens <= 4000 < windows.num_tokens + 300
    read = [words.pairs.pair(0, i) for i in range(len(numbers))]
    assert windows.num_bytes == sum(len(pair.source) + len(pair.target) for pair in read)
    assert windows.num_tokens == windows.num_bytes + 2 * len(read)


def test_pairs_that_are_too_long_are_left_out_with_a_word() -> None:
    with pytest.warns(UserWarning, match="skipped") as warned:
        words = text(FilePairs(PAIRS), context_length=6)
    assert [str(w.message) for w in warned] == [
        "data.pairs: 2 of 10 pairs have a source or target of more than model.context_length = 6 tokens with its end "
        "token, the first at line 6; they are skipped"
    ]
    kept = [pair.target for i, pair in enumerate(PAIRS) if i not in (5, 6)]
    assert sorted(TOKENIZER.decode(e.target) for e in words.drawn(0, np.arange(8))) == sorted(kept)
    with pytest.raises(
        UserError, match=r"10 of 10 pairs .* none is left: raise model\.context_len"
    ):
        text(FilePairs(PAIRS), context_length=2)


def test_a_drawn_pair_that_is_too_long_is_replaced() -> None:
    with pytest.warns(UserWarning, match="are skipped"):
        words = text(SyntheticPairs("train"), context_length=60)
    drawn = words.drawn(3, np.arange(100))
    assert max(max(len(one.source), len(one.target)) for one in drawn) <= 59
    assert [one.target.tolist() for one in drawn] == [
        one.target.tolist() for one in words.drawn(3, np.arange(100))
    ]


def test_a_tokenizer_is_trained_on_sources_and_targets() -> None:
    documents = ["".join(document.pieces) for document in FilePairs(PAIRS)]
    assert documents == [text for pair in PAIRS for text in (pair.source, pair.target)]
