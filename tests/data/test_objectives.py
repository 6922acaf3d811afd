"""What an objective draws depends on seed and step alone; what it says of its windows is what it gets."""

from typing import ClassVar, Literal

import numpy as np
import pytest
import torch

from archwright.data.batches import Batches
from archwright.data.inputs import IGNORE, Batch, Inputs
from archwright.data.objectives import OBJECTIVES, Examples, MakeBatch, Vocabulary
from archwright.model.build import build
from archwright.spec.errors import UserError
from archwright.spec.objectives import (
    MaskedTokens,
    NextToken,
    Objective,
    PrefixLM,
    ReplacedTokens,
    SpanCorruption,
)
from archwright.spec.read import load, load_run
from archwright.spec.run_rules import enforce_run
from tests.sentences import Sentences, lines_of

TOKENS = np.arange(1000)
MASK, END = 90, 91
WORDS = Vocabulary(92, END, {"[MASK]": MASK, "<|endoftext|>": END})


@pytest.fixture
def drawn(visitors: None) -> Examples:
    """Targets that are drawn, of windows that are half as long again as the context."""

    class Drawn(Objective):
        kind: Literal["drawn"] = "drawn"
        causal: ClassVar[bool] = True

        def window_length(self, context_length: int) -> int:
            return 3 * context_length // 2

    def part(spec: Drawn, vocabulary: Vocabulary) -> MakeBatch:
        def make(text: Inputs, generator: np.random.Generator) -> Batch:
            return Batch(text, generator.integers(10**9, size=text.tokens.shape))

        return make

    OBJECTIVES.add(Drawn, part)
    return Examples(Drawn(), Vocabulary())


def test_draws_are_a_function_of_seed_and_step(drawn: Examples) -> None:
    found = {
        (seed, step): Batches(TOKENS, 8, 4, seed, examples=drawn).at(step).targets.tolist()
        for seed in (0, 1)
        for step in (0, 1)
    }
    assert len({str(targets) for targets in found.values()}) == 4
    again = Batches(TOKENS, 8, 4, 1, examples=drawn)
    assert again.at(1).targets.tolist() == found[1, 1]


def test_windows_that_share_nothing_cover_the_text(drawn: Examples) -> None:
    batches = Batches(TOKENS, 8, 1, examples=drawn)
    rows = [batches.at(step).inputs.tokens[0] for step in range(batches.windows_per_epoch)]
    assert all(len(row) == 12 for row in rows)
    read = np.sort(np.concatenate(rows))
    assert (np.diff(read) == 1).all()
    assert len(TOKENS) - len(read) < 24
    with pytest.raises(UserError, match=r"12 tokens are needed \(model\.context_length \+ 4\)"):
        Batches(TOKENS[:11], 8, 1, examples=drawn)


def test_the_last_token_of_a_text_is_a_target_only() -> None:
    text = Inputs(np.array([[1, 2, 3, 4], [5, 6, 9, 9]]))
    mask = np.array([[True] * 4, [True, True, False, False]])
    examples = Examples(NextToken(), Vocabulary())
    whole = examples.batch(text)
    assert whole.inputs.tokens.tolist() == [[1, 2, 3], [5, 6, 9]]
    assert whole.targets.tolist() == [[2, 3, 4], [6, 9, 9]]
    padded = examples.batch(Inputs(text.tokens, padding_mask=mask))
    assert padded.targets.tolist() == [[2, 3, 4], [6, IGNORE, IGNORE]]
    assert padded.inputs.padding_mask.tolist() == [[True] * 3, [True, False, False]]


def test_a_special_token_that_is_none_is_refused_with_the_nearest() -> None:
    vocabulary = Vocabulary(9, 0, {"[MASK]": 8})
    assert vocabulary.special_id("[MASK]", "objective.mask_token") == 8
    with pytest.raises(UserError) as caught:
        vocabulary.special_id("[MASKS]", "objective.mask_token")
    (line,) = caught.value.lines
    assert line.startswith('objective.mask_token: found "[MASKS]"; expected a special token of')
    assert line.endswith('Did you mean "[MASK]"?')


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ([], "a list; expected a Batch of inputs and targets"),
        (
            Batch(Inputs(np.zeros((2, 4), int)), np.zeros((2, 3), int)),
            "targets of shape [2, 3]; expected the shape of the tokens, [2, 4]",
        ),
    ],
)
def test_what_is_no_batch_is_refused(visitors: None, made: object, line: str) -> None:
    class Broken(Objective):
        kind: Literal["broken"] = "broken"
        causal: ClassVar[bool] = True

    OBJECTIVES.add(Broken, lambda spec, vocabulary: lambda text, generator: made)
    with pytest.raises(UserError) as caught:
        Examples(Broken(), Vocabulary()).batch(Inputs(np.zeros((2, 4), int)), 0)
    assert caught.value.lines == (f'objective.kind = "broken": its part gave {line}',)


class TestPrefixLM:
    def test_what_follows_the_prefix_is_predicted(self) -> None:
        text = np.arange(3000).reshape(300, 10)
        batch = Examples(PrefixLM(), Vocabulary()).batch(Inputs(text), 1)
        lengths = batch.inputs.prefix_lengths
        assert set(lengths.tolist()) == set(range(1, 10))
        for row, length, targets in zip(text, lengths, batch.targets, strict=True):
            assert targets.tolist() == [IGNORE] * (length - 1) + row[length:].tolist()
        assert (batch.inputs.tokens == text[:, :-1]).all()

    def test_no_target_is_seen_where_it_is_predicted(self) -> None:
        text = np.random.default_rng(0).integers(64, size=(4, 13))
        batch = Examples(PrefixLM(), Vocabulary()).batch(Inputs(text), 3).map(torch.from_numpy)
        keys = ("dim=32", "num_layers=2", "vocab_size=64", "attention.mask.kind=prefix")
        model = build(load("modern").override(*keys, "head.tied=false"), seed=1).eval()
        logits = model(**batch.inputs.given()).logits
        for t in range(12):
            tokens = batch.inputs.tokens.clone()
            tokens[:, t + 1 :] = (tokens[:, t + 1 :] + 1) % 64
            changed = model(**{**batch.inputs.given(), "tokens": tokens}).logits[:, t]
            counted = batch.targets[:, t] != IGNORE
            torch.testing.assert_close(changed[counted], logits[:, t][counted])
            # Within a prefix they are seen, which shows that they could be.
            if not counted.all():
                assert not torch.allclose(changed[~counted], logits[:, t][~counted])

    def test_shares_are_uniform_between_the_options(self) -> None:
        text = Inputs(np.zeros((4000, 1001), np.int64))
        spec = PrefixLM(shortest=0.2, longest=0.6)
        lengths = Examples(spec, Vocabulary()).batch(text, 1).inputs.prefix_lengths
        assert lengths.min() >= 200
        assert lengths.max() <= 600
        assert lengths.mean() == pytest.approx(400, abs=6)
        assert lengths.std() == pytest.approx(400 / 12**0.5, abs=4)

    def test_each_document_begins_with_a_prefix(self) -> None:
        positions = np.array([[0, 1, 2, 0, 1, 2, 3, 4]])
        text = Inputs(np.arange(8)[None], positions, np.array([[0, 0, 0, 1, 1, 1, 1, 1]]))
        batch = Examples(PrefixLM(shortest=0.75, longest=0.75), Vocabulary()).batch(text, 0)
        # Of the four inputs of the longer document three are its prefix; nothing is left of the shorter one.
        assert batch.inputs.prefix_lengths.tolist() == [3]
        assert batch.targets.tolist() == [[IGNORE, IGNORE, 3, IGNORE, IGNORE, 6, 7]]

    def test_of_a_padded_row_it_is_a_share_of_the_text(self) -> None:
        mask = np.arange(9) < np.array([[9], [5]])
        text = Inputs(np.arange(18).reshape(2, 9), padding_mask=mask)
        batch = Examples(PrefixLM(shortest=0.5, longest=0.5), Vocabulary()).batch(text, 0)
        assert batch.inputs.prefix_lengths.tolist() == [4, 2]
        assert batch.targets[1].tolist() == [IGNORE, 11, 12, 13] + [IGNORE] * 4


class TestReplacedTokens:
    """Against section 2 of ELECTRA: a share of the tokens is masked, all of them, and proposed by a generator."""

    def test_each_chosen_token_is_masked_and_has_a_number_to_be_drawn_by(self) -> None:
        text = np.random.default_rng(1).integers(80, size=(400, 500))
        text[:, 0] = END
        real = np.arange(500) < np.where(np.arange(400) % 2, 500, 300)[:, None]
        batch = Examples(ReplacedTokens(share=0.25), WORDS).batch(
            Inputs(text, padding_mask=real), 7
        )
        tokens, draws, chosen = batch.inputs.tokens, batch.inputs.draws, batch.targets != IGNORE
        assert chosen[:, 1:300].mean() == pytest.approx(0.25, abs=0.004)
        assert not chosen[:, 0].any()
        assert not chosen[~real].any()
        assert (tokens[chosen] == MASK).all()
        assert (batch.targets[chosen] == text[chosen]).all()
        assert (tokens[~chosen] == text[~chosen]).all()
        assert (draws[~chosen] == -1).all()
        assert (np.sort(draws[chosen])[:: chosen.sum() // 8][:8] - np.arange(8) / 8).max() < 0.02
        assert draws[chosen].min() >= 0
        assert draws[chosen].max() < 1

    def test_a_run_needs_a_generator_and_whole_logits(self) -> None:
        run = load_run("electra-small")
        enforce_run(run)
        for keys, line in {
            ("model.generator.kind=none",): "in which a generator proposes tokens",
            ("objective.kind=masked_tokens",): 'expected "replaced_tokens"',
            ("machine.loss=chunked",): "whose logits tokens are drawn from",
        }.items():
            with pytest.raises(UserError, match=line) as caught:
                enforce_run(run.override(*keys))
            assert len(caught.value.lines) == 1
        assert run.tokenizer.special_tokens == ("[MASK]",)


CLASS, SEPARATOR = 92, 93
PAIRED = Vocabulary(
    94, END, {"[MASK]": MASK, "<|endoftext|>": END, "[CLS]": CLASS, "[SEP]": SEPARATOR}
)


class TestSegments:
    """Against section 3.1 of BERT and of ALBERT: a row is [CLS] a [SEP] b [SEP], half of them as they were."""

    ROWS, WINDOW = 400, 37

    def made(self, segments: str) -> tuple[Batch, np.ndarray]:
        # Row r holds r * 37, r * 37 + 1, ..., so that a token tells where it was.
        text = np.arange(self.ROWS * self.WINDOW).reshape(self.ROWS, self.WINDOW) + 100
        large = Vocabulary(text.max() + 1, END, PAIRED.special_ids)
        spec = MaskedTokens.model_validate({"segments": segments, "kept": 1.0, "random": 0.0})
        assert spec.window_length(40) == self.WINDOW
        return Examples(spec, large).batch(Inputs(text), 3), text

    @pytest.mark.parametrize("segments", ["next", "order"])
    def test_rows_are_two_segments(self, segments: str) -> None:
        batch, text = self.made(segments)
        tokens, types, judged = (
            batch.inputs.tokens,
            batch.inputs.token_type_ids,
            batch.sequence_targets,
        )
        assert tokens.shape == types.shape == (self.ROWS, 40)
        assert judged.mean() == pytest.approx(0.5, abs=0.08)
        assert (tokens[:, 0] == CLASS).all()
        assert (tokens[:, -1] == SEPARATOR).all()
        cuts = []
        for row, own, kinds, apart in zip(tokens, text, types, judged, strict=True):
            first_end = int(np.argmax(row == SEPARATOR))
            a, b = row[1:first_end], row[first_end + 1 : -1]
            assert kinds.tolist() == [0] * (first_end + 1) + [1] * (len(b) + 1)
            cuts.append(len(a))
            if not apart:
                assert [*a, *b] == own.tolist()
            elif segments == "order":
                assert [*b, *a] == own.tolist()
            else:
                assert a.tolist() == own[: len(a)].tolist()
                other = int(b[0] - 100) // self.WINDOW
                assert b.tolist() == text[other, len(a) :].tolist()
                assert text[other, 0] != own[0]
        assert len({*cuts}) > 25

    def test_special_tokens_are_never_predicted(self) -> None:
        batch, _ = self.made("next")
        predicted = batch.targets[batch.targets != IGNORE]
        assert len(predicted)
        assert not np.isin(predicted, [CLASS, SEPARATOR, END, MASK]).any()

    def test_rows_of_several_lengths_are_padded(self) -> None:
        text = np.full((6, 9), 5)
        real = np.arange(9) < np.array([9, 9, 4, 2, 1, 6])[:, None]
        batch = Examples(MaskedTokens(segments="next"), PAIRED).batch(
            Inputs(text, padding_mask=real), 0
        )
        assert batch.inputs.padding_mask.sum(1).min() >= 3
        assert (batch.targets[~batch.inputs.padding_mask] == IGNORE).all()

    def test_a_row_alone_keeps_its_end(self) -> None:
        for seed in range(8):
            batch = Examples(MaskedTokens(segments="next"), PAIRED).batch(
                Inputs(np.arange(30)[None]), seed
            )
            assert batch.sequence_targets.tolist() == [0]

    @pytest.mark.parametrize("segments", ["next", "order"])
    def test_a_run_needs_a_head_and_token_types(self, segments: str) -> None:
        run = load_run("bert-base").override(f"objective.segments={segments}")
        enforce_run(run)
        for key, line in {
            "model.sequence_head.kind=none": "which a head of rows judges",
            "model.embedding.token_types=0": "in rows of two segments",
            "data.packing=document_mask": "in rows without packed documents",
            "objective.class_token=[SEP]": "expected three different tokens",
        }.items():
            with pytest.raises(UserError, match=line) as caught:
                enforce_run(run.override(key))
            assert len(caught.value.lines) == 1
        assert run.tokenizer.special_tokens == ("[MASK]", "[CLS]", "[SEP]")


class TestMaskedTokens:
    """Against section 3.1 of BERT, by counting."""

    def test_shares_are_those_of_the_paper(self) -> None:
        text = np.random.default_rng(1).integers(80, size=(400, 500))
        batch = Examples(MaskedTokens(), WORDS).batch(Inputs(text), 7)
        chosen = batch.targets != IGNORE
        assert (batch.targets[chosen] == text[chosen]).all()
        assert (batch.inputs.tokens[~chosen] == text[~chosen]).all()
        assert chosen.mean() == pytest.approx(0.15, abs=0.003)
        given = batch.inputs.tokens[chosen]
        masked, kept = given == MASK, given == text[chosen]
        assert masked.mean() == pytest.approx(0.8 + 0.1 / 92, abs=0.01)
        assert kept.mean() == pytest.approx(0.1 + 0.1 / 92, abs=0.01)
        assert len(set(given[~masked & ~kept].tolist())) == 91  # all ids but the mask's

    def test_padding_and_special_tokens_are_no_targets(self) -> None:
        tokens = np.full((50, 40), 5)
        tokens[:, 0] = END
        mask = np.arange(40) < np.arange(50)[:, None]
        batch = Examples(MaskedTokens(share=1.0), WORDS).batch(Inputs(tokens, padding_mask=mask), 0)
        assert ((batch.targets != IGNORE) == (mask & (np.arange(40) > 0))).all()

    @pytest.mark.parametrize("longest", [2, 3, 5])
    def test_runs_are_as_long_as_the_paper_says_and_no_more_is_chosen(self, longest: int) -> None:
        """ALBERT, section 4.1: lengths n with probability 1/n over the sum of all. Seen at rare runs, apart."""
        text = np.random.default_rng(1).integers(80, size=(400, 500))
        usual = Examples(MaskedTokens(longest_run=longest), WORDS).batch(Inputs(text), 7)
        assert (usual.targets != IGNORE).mean() == pytest.approx(0.15, abs=0.004)
        rare = Examples(MaskedTokens(share=0.01, longest_run=longest), WORDS).batch(Inputs(text), 7)
        chosen = np.pad(rare.targets != IGNORE, ((0, 0), (1, 1)))
        begins, ends = (
            np.argwhere(np.diff(chosen.astype(int), axis=1) == step) for step in (1, -1)
        )
        lengths = ends[:, 1] - begins[:, 1]
        shares = 1 / np.arange(1, longest + 1) / sum(1 / n for n in range(1, longest + 1))
        for n, share in enumerate(shares, 1):
            assert (lengths == n).mean() == pytest.approx(share, abs=0.05)

    def test_its_mask_token_is_one_of_the_tokenizer(self) -> None:
        with pytest.raises(
            UserError, match=r'objective\.mask_token: found "\[MASK\]"; expected a special token'
        ):
            Examples(MaskedTokens(), Vocabulary(92, END))
        run = load_run("modern").override("objective.kind=masked_tokens")
        assert run.tokenizer.special_tokens == ("[MASK]",)
        assert run.data.tokenizer.special_tokens == ()


SENTINELS = {f"<extra_id_{i}>": 200 + i for i in range(100)}
SPANS = Vocabulary(300, 0, {"<|endoftext|>": 0, **SENTINELS})


def _restored(source: list[int], target: list[int]) -> tuple[list[int], list[int]]:
    """Return the text of a source and a target, and the lengths of its spans."""
    spans: dict[int, list[int]] = {}
    for token in target:
        if token >= 200:
            spans[token] = here = []
        else:
            here.append(token)
    text = [t for token in source for t in (spans[token] if token >= 200 else [token])]
    assert [token for token in source if token >= 200] == [*spans] == sorted(spans)
    return text, [len(span) for span in spans.values()]


class TestSpanCorruption:
    """Against section 3.1.4 of T5 and the lengths of its published code."""

    def test_lengths_are_those_of_t5(self) -> None:
        spec = SpanCorruption()
        assert spec.window_length(512) == 568
        assert spec.target_length(512) == 114

    @pytest.mark.parametrize("share", [0.01, 0.15, 0.5])
    @pytest.mark.parametrize("mean_length", [1.0, 3.0, 40.0])
    @pytest.mark.parametrize("num_sentinels", [1, 5, 100])
    def test_a_window_is_as_long_as_fits(
        self, share: float, mean_length: float, num_sentinels: int
    ) -> None:
        spec = SpanCorruption(share=share, mean_length=mean_length, num_sentinels=num_sentinels)
        examples = Examples(spec, SPANS)
        for context in (3, 4, 5, 17, 128):
            window = spec.window_length(context)
            text = np.ones((2, window + 1), np.int64)
            batch = examples.batch(Inputs(text[:, :-1]), 0)
            assert batch.inputs.tokens.shape[1] <= context
            assert batch.targets.shape[1] == spec.target_length(context) <= context
            assert examples.batch(Inputs(text), 0).inputs.tokens.shape[1] > context

    def test_source_and_target_are_the_text(self) -> None:
        text = np.random.default_rng(0).integers(1, 200, size=(300, 568))
        batch = Examples(SpanCorruption(), SPANS).batch(Inputs(text), 3)
        inputs, lengths = batch.inputs, []
        assert inputs.given().keys() == {"tokens", "decoder_tokens"}
        assert inputs.tokens.shape == (300, 512)
        assert batch.targets.shape == (300, 114)
        assert (inputs.decoder_tokens[:, 0] == 0).all()
        assert (inputs.decoder_tokens[:, 1:] == batch.targets[:, :-1]).all()
        assert (inputs.tokens[:, -1] == 0).all()
        assert (batch.targets[:, -1] == 0).all()
        for row, source, target in zip(
            text.tolist(), inputs.tokens.tolist(), batch.targets.tolist(), strict=True
        ):
            found, spans = _restored(source[:-1], target[:-1])
            assert found == row
            lengths += spans
        assert np.mean(lengths) == pytest.approx(85 / 28)
        # Each way to split 85 tokens into 28 spans is equally likely: a span has length 1 with 27 / 84.
        assert np.mean(np.array(lengths) == 1) == pytest.approx(27 / 84, abs=0.02)

    def test_no_more_spans_than_sentinels(self) -> None:
        spec = SpanCorruption(num_sentinels=2, mean_length=1.0, share=0.5)
        batch = Examples(spec, SPANS).batch(Inputs(np.ones((2, 50), np.int64)), 0)
        assert {*batch.inputs.tokens.ravel().tolist()} == {0, 1, 200, 201}

    def test_its_sentinels_are_those_of_the_tokenizer(self) -> None:
        with pytest.raises(
            UserError, match=r'objective\.sentinel: found "<extra_id_0>"; expected a special token'
        ):
            Examples(SpanCorruption(), Vocabulary(92, END))
        run = load_run("modern").override("objective.kind=span_corruption")
        assert run.tokenizer.special_tokens == tuple(SENTINELS)


@pytest.mark.parametrize("words", lines_of("objectives"))
def test_masks_and_options_that_do_not_fit_are_refused(words: str, sentences: Sentences) -> None:
    with pytest.raises(UserError) as caught:
        enforce_run(load_run("modern").override(*words.split()))
    sentences.check("objectives", words, caught.value.lines)
