"""Mixtures of denoisers, and infilling: what is left out is in the target, as often and as long as published."""

import itertools
import math
import re
from collections import Counter

import numpy as np
import pytest
import torch

from archwright.data.inputs import IGNORE, Batch, Inputs
from archwright.data.objectives import Examples, Vocabulary
from archwright.model.build import build
from archwright.spec.errors import UserError
from archwright.spec.objectives import (
    UL2_DENOISERS,
    Denoiser,
    Denoising,
    Objective,
    SpanCorruption,
    TextInfilling,
)
from archwright.spec.read import load, load_run
from archwright.spec.run_rules import enforce_run

END, MASK, FIRST_SENTINEL, FIRST_MODE = 0, 999, 1000, 1200
MODES = {"[R]": FIRST_MODE, "[S]": FIRST_MODE + 1, "[X]": FIRST_MODE + 2}
SENTINELS = {f"<extra_id_{i}>": FIRST_SENTINEL + i for i in range(100)}
WORDS = Vocabulary(1300, END, {"<|endoftext|>": END, **SENTINELS, **MODES})

Pair = tuple[list[int], list[int]]


def text_of(rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(5).integers(1, FIRST_SENTINEL, size=(rows, length))


def pairs(batch: Batch) -> list[Pair]:
    """Return source and target of each row, without padding and the token that ends both."""
    inputs, found = batch.inputs, []
    for i in range(len(batch.targets)):
        real = True if inputs.padding_mask is None else inputs.padding_mask[i]
        source = inputs.tokens[i][real].reshape(-1).tolist()
        target = batch.targets[i][batch.targets[i] != IGNORE].tolist()
        assert source.pop() == target.pop() == END
        found.append((source, target))
    return found


def is_sentinel(token: int) -> bool:
    return FIRST_SENTINEL <= token < FIRST_MODE


def restored(pair: Pair) -> tuple[str, list[int], list[list[int]]]:
    """Return the mode of a pair, the text that it was made of, and its spans: written as one fills in a form."""
    source, target = pair
    mode = next((name for name, i in MODES.items() if source[0] == i), "")
    source = source[1:] if mode else source
    spans: list[list[int]] = []
    for token in target:
        if is_sentinel(token):
            assert token == FIRST_SENTINEL + len(spans)
            spans.append([])
        else:
            spans[-1].append(token)
    text, left = [], iter(spans)
    for token in source:
        text += next(left) if is_sentinel(token) else [token]
    assert next(left, None) is None
    return mode, text, spans


PACKING = (SpanCorruption(), Denoising(), TextInfilling(permute_sentences=False))


class TestPacked:
    """Where documents do not see each other, each is a text of its own."""

    @staticmethod
    def documents(batch: Batch, i: int) -> list[Pair]:
        """Return source and target of each document of a row, of which both sides have the numbers."""
        inputs, found = batch.inputs, []
        source_ids, target_ids = inputs.segment_ids[i], inputs.decoder_segment_ids[i]
        real = (True, True)
        if inputs.padding_mask is not None:
            real = (inputs.padding_mask[i], real[1])
        if inputs.decoder_padding_mask is not None:
            real = (real[0], inputs.decoder_padding_mask[i])
        for number in np.unique(source_ids[real[0]]):
            sources = inputs.tokens[i][real[0] & (source_ids == number)].tolist()
            here = real[1] & (target_ids == number)
            read, target = inputs.decoder_tokens[i][here].tolist(), batch.targets[i][here].tolist()
            assert [*read, END] == [END, *target]
            assert sources.pop() == target.pop() == END
            found.append((sources, target))
        return found

    @pytest.mark.parametrize("spec", PACKING, ids=[spec.kind for spec in PACKING])
    def test_each_document_is_made_by_itself(self, spec: Objective) -> None:
        words = Vocabulary(1300, END, {**WORDS.special_ids, "<mask>": MASK})
        length, context = spec.window_length(64), 64
        text = text_of(40, length)
        generator = np.random.default_rng(2)
        ids = np.cumsum(generator.random(text.shape) < np.linspace(0, 0.3, 40)[:, None], axis=1)
        ids -= ids[:, :1]
        batch = Examples(spec, words).batch(Inputs(text, segment_ids=ids), 4)
        assert batch.inputs.tokens.shape[1] <= context
        assert batch.targets.shape[1] <= context
        lost = 0
        for i, row in enumerate(text):
            made = self.documents(batch, i)
            whole = [row[ids[i] == number].tolist() for number in np.unique(ids[i])]
            found = [
                target if isinstance(spec, TextInfilling) else restored((source, target))[1]
                for source, target in made
            ]
            assert found[:-1] == whole[: len(found) - 1]
            assert found[-1] == whole[len(found) - 1][: len(found[-1])]
            lost += len(row) - sum(map(len, found))
            # Of a row of one document nothing is lost, of others no more than their ends take.
            assert len(row) - sum(map(len, found)) <= 4 * (len(whole) - 1)
        assert lost > 0

    def test_a_document_is_read_as_if_it_were_alone(self) -> None:
        keys = (
            "num_layers=1",
            "encoder.num_layers=1",
            "vocab_size=1300",
            "dim=32",
            "context_length=64",
        )
        model = build(load("t5-small").override(*keys), seed=1).eval()
        text, ids = text_of(1, 60), np.repeat([[0, 1]], 30, axis=1)
        batch = Examples(SpanCorruption(), WORDS).batch(Inputs(text, segment_ids=ids), 0)
        logits = model(**batch.map(torch.from_numpy).inputs.given()).logits[0]
        alone = []
        for source, target in self.documents(batch, 0):
            tokens, read = torch.tensor([[*source, END]]), torch.tensor([[END, *target]])
            alone.append(model(tokens, decoder_tokens=read).logits[0])
        torch.testing.assert_close(logits, torch.cat(alone))


class TestDenoising:
    """Against table 1 of UL2."""

    @pytest.mark.parametrize("denoiser", UL2_DENOISERS, ids=range(len(UL2_DENOISERS)))
    def test_shares_and_lengths_are_those_of_the_table(self, denoiser: Denoiser) -> None:
        spec = Denoising(denoisers=(denoiser,))
        length = Denoising().window_length(
            512
        )  # beside all others, which leaves room for 100 spans
        text = text_of(300, length)
        batch = Examples(spec, WORDS).batch(Inputs(text), 3)
        assert batch.inputs.tokens.shape[1] <= 512
        assert batch.targets.shape[1] <= 512
        made = [restored(pair) for pair in pairs(batch)]
        assert [found for _, found, _ in made] == text.tolist()
        assert {mode for mode, _, _ in made} == {denoiser.mode}
        out = [len(span) for _, _, spans in made for span in spans]
        # A mean of lengths that are drawn uniformly from 1 to half of a window errs by 0.07 of it.
        share = sum(out) / text.size
        assert share == pytest.approx(denoiser.share, rel=0.1 if denoiser.at_end else 0.01)
        mean = length / 4 if denoiser.at_end else denoiser.mean_length
        # As T5's code does, the number of spans is rounded: 128 tokens in spans of 64 are 2, and 76 are 1.
        assert np.mean(out) == pytest.approx(mean, rel=0.1 if mean < 50 else 0.3)
        if denoiser.at_end:
            assert all(len(spans) == 1 for _, _, spans in made)
            assert all(is_sentinel(source[-1]) for source, _ in pairs(batch))
            assert min(out) < 0.03 * length
            assert 0.47 * length < max(out) < 0.5 * length
            assert np.std(out) == pytest.approx(length / 2 / 12**0.5, rel=0.1)

    def test_denoisers_are_drawn_by_their_weights(self) -> None:
        text = Inputs(text_of(7000, 14))
        drawn = pairs(Examples(Denoising(), WORDS).batch(text, 1))
        modes = Counter(source[0] - FIRST_MODE for source, _ in drawn)
        for mode, of_seven in (("[R]", 2), ("[S]", 1), ("[X]", 4)):
            assert modes[MODES[mode] - FIRST_MODE] / 7000 == pytest.approx(of_seven / 7, abs=0.02)
        rare = Denoiser(mode="[S]", share=0.5, at_end=True)
        often = Denoiser(mode="", weight=3.0)
        drawn = pairs(Examples(Denoising(denoisers=(rare, often)), WORDS).batch(text, 1))
        sequential = sum(source[0] == MODES["[S]"] for source, _ in drawn)
        assert sequential / 7000 == pytest.approx(0.25, abs=0.02)
        assert all(source[0] not in {*MODES.values()} - {MODES["[S]"]} for source, _ in drawn)

    def test_they_are_a_function_of_seed_and_step(self) -> None:
        text, examples = Inputs(text_of(4, 30)), Examples(Denoising(), WORDS)
        found = [pairs(examples.batch(text, *seed)) for seed in ((1, 2), (1, 2), (1, 3), (2, 2))]
        assert found[0] == found[1]
        assert len({str(pair) for pair in found}) == 3

    @pytest.mark.parametrize("context", [4, 5, 6, 17, 128])
    def test_a_window_fits_whichever_is_drawn(self, context: int) -> None:
        spec = Denoising()
        length = spec.window_length(context)
        batch = Examples(spec, WORDS).batch(Inputs(text_of(200, length)), 0)
        assert batch.inputs.tokens.shape[1] <= context
        assert batch.targets.shape[1] <= context
        longer = Examples(spec, WORDS).batch(Inputs(text_of(200, length + 1)), 0)
        assert longer.inputs.tokens.shape[1] > context

    def test_the_length_of_targets_is_what_it_is_on_average(self) -> None:
        spec = Denoising()
        drawn = pairs(Examples(spec, WORDS).batch(Inputs(text_of(4000, spec.window_length(64))), 2))
        mean = np.mean([len(target) + 1 for _, target in drawn])
        assert mean == pytest.approx(spec.target_length(64), abs=1)

    def test_short_and_padded_texts_lose_nothing(self) -> None:
        text = text_of(60, 60)
        mask = np.arange(60) < np.arange(1, 61)[:, None]
        batch = Examples(Denoising(), WORDS).batch(Inputs(text, padding_mask=mask), 3)
        for i, pair in enumerate(pairs(batch)):
            assert restored(pair)[1] == text[i, : i + 1].tolist()

    def test_its_special_tokens_are_those_of_the_tokenizer(self) -> None:
        run = load_run("t5-small").override("objective.kind=denoising")
        assert run.tokenizer.special_tokens == ("[R]", "[S]", "[X]", *SENTINELS)
        with pytest.raises(
            UserError, match=r'objective\.denoisers: found "\[R\]"; expected a special token'
        ):
            Examples(Denoising(), Vocabulary(1300, END, SENTINELS))

    def test_a_mode_is_no_sentinel(self) -> None:
        keys = ('objective.denoisers=[{mode="<extra_id_3>"}]', "objective.kind=denoising")
        with pytest.raises(UserError) as caught:
            enforce_run(load_run("t5-small").override(*keys))
        assert caught.value.lines == (
            'objective.denoisers: found the mode "<extra_id_3>", which is a sentinel; expected another',
        )


def letters(*texts: str) -> Vocabulary:
    """Return the vocabulary whose tokens are these."""
    return Vocabulary(1000, END, {"<mask>": MASK}, lambda ids: (*texts, *[""] * 1000)[ids[0]])


def between_masks(source: list[int], text: list[int]) -> list[int]:
    """Return how many tokens each mask stands for, of a text in which each token is another."""
    places, lengths = {token: i for i, token in enumerate(text)}, []
    next_place, masks = 0, 0
    for token in [*source, None]:
        if token == MASK:
            masks += 1
            assert masks == 1, "masks that stand side by side cannot be told apart"
            continue
        place = len(text) if token is None else places[token]
        assert place >= next_place
        assert masks or place == next_place
        lengths += [place - next_place] * masks
        next_place, masks = place + 1, 0
    return lengths


class TestTextInfilling:
    """Against sections 2.2 and 5.1 of BART."""

    def test_spans_have_the_lengths_of_the_paper(self) -> None:
        spec = TextInfilling(permute_sentences=False)
        assert spec.window_length(1024) == 1023
        text = np.stack([np.random.default_rng(i).permutation(998)[:900] + 1 for i in range(150)])
        batch = Examples(spec, letters()).batch(Inputs(text), 2)
        assert [target for _, target in pairs(batch)] == text.tolist()
        lengths = [
            between_masks(source, row.tolist())
            for (source, _), row in zip(pairs(batch), text, strict=True)
        ]
        assert {sum(each) for each in lengths} == {round(0.3 * 900)}
        drawn = Counter(length for each in lengths for length in each)
        total = sum(drawn.values())
        for length in range(9):
            poisson = math.exp(-3) * 3**length / math.factorial(length)
            # The last one of a text is cut, of about 90.
            assert drawn[length] / total == pytest.approx(poisson, abs=0.012)

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
    def test_short_texts_keep_what_is_not_masked_in_order(self, share: float) -> None:
        spec = TextInfilling(share=share, mean_length=0.7, permute_sentences=False)
        examples = Examples(spec, letters())
        for length in range(1, 12):
            text = np.arange(1, length + 1)
            for seed in range(20):
                ((source, target),) = pairs(examples.batch(Inputs(text[None]), seed))
                assert target == text.tolist()
                assert len(source) <= length
                assert sum(between_masks(source, target)) == round(share * length)

    def test_sentences_are_permuted_and_each_order_is_as_likely(self) -> None:
        """The reference splits the text, not its tokens, and by an expression."""
        parts = (" a", " b", ".", "c", "\n", "?)", "!", " d", "1")
        spec = TextInfilling(share=0.0)
        examples = Examples(spec, letters("", *parts))
        generator = np.random.default_rng(0)
        for seed in range(100):
            text = generator.integers(1, 1 + len(parts), size=20)
            ((source, target),) = pairs(examples.batch(Inputs(text[None]), seed))
            assert target == text.tolist()
            whole = "".join(parts[i - 1] for i in text)
            # A sentence goes on to an end that a blank follows, which may belong to the token of the end.
            sentences = re.split(r"(?<=[.!?])(?=\s)|(?<=[.!?]\))(?=\s)", whole)
            found = "".join(parts[i - 1] for i in source)
            assert any(found == "".join(order) for order in itertools.permutations(sentences)) or (
                len(sentences) > 7 and Counter(found) == Counter(whole)
            )
        text = np.array([1, 3, 2, 7, 1, 6])  # " a." " b!" " a?)"
        orders = Counter(
            str(pairs(examples.batch(Inputs(text[None]), seed))[0][0]) for seed in range(1200)
        )
        assert len(orders) == 6
        assert min(orders.values()) > 150

    def test_padded_rows_are_texts_of_their_own(self) -> None:
        text = np.arange(1, 41).reshape(2, 20)
        mask = np.arange(20) < np.array([[20], [9]])
        batch = Examples(TextInfilling(), letters()).batch(Inputs(text, padding_mask=mask), 1)
        (_, whole), (source, short) = pairs(batch)
        assert (whole, short) == (text[0].tolist(), text[1, :9].tolist())
        assert set(source) <= {*short, MASK}
        assert (batch.inputs.decoder_tokens[:, 0] == END).all()
        assert batch.inputs.decoder_padding_mask.sum(axis=1).tolist() == [21, 10]

    def test_its_mask_token_is_one_of_the_tokenizer(self) -> None:
        assert load_run("bart-base").tokenizer.special_tokens == ("<mask>",)
        with pytest.raises(
            UserError, match=r'objective\.mask_token: found "<mask>"; expected a special token'
        ):
            Examples(TextInfilling(), Vocabulary(1000, END))
