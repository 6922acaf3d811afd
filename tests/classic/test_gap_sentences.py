"""PEGASUS's principal sentences beside ROUGE-1 by its definition."""

import re
from collections import Counter

import numpy as np

from archwright.classic.spec.gap_sentences import GapSentences
from archwright.data.inputs import Inputs
from archwright.data.objectives import Examples
from tests.data.test_denoising import MASK, letters, pairs


class TestGapSentences:
    """Against section 3.1 of PEGASUS: the principal sentences of a text, by ROUGE-1, and masks in their places."""

    PARTS = ("sun ", "Moon ", "sea ", "hill ", "dog ", "stars", ". ", "! ", "moon", "Sea ")

    @staticmethod
    def rouge(candidate: str, reference: str) -> float:
        """Return the F1 of ROUGE-1 by its definition, of texts in which each word is counted once."""
        own, other = ({*re.findall("[a-z]+", text.lower())} for text in (candidate, reference))
        if not own & other:
            return 0.0
        precision, recall = len(own & other) / len(own), len(own & other) / len(other)
        return 2 * precision * recall / (precision + recall)

    def test_principal_sentences_are_those_most_alike_the_rest(self) -> None:
        words = letters("", *self.PARTS)
        vocabulary = words._replace(decode=lambda ids: "".join(map(self.text_of, ids)))
        examples = Examples(GapSentences(share=0.3), vocabulary)
        generator, numbers = np.random.default_rng(0), Counter[int]()
        for seed in range(200):
            text = generator.integers(1, 1 + len(self.PARTS), size=40)
            ((source, target),) = pairs(examples.batch(Inputs(text[None]), seed))
            cuts = [i + 1 for i, token in enumerate(text) if token in (7, 8)]
            sentences = [part.tolist() for part in np.split(text, cuts) if len(part)]
            texts = ["".join(map(self.text_of, part)) for part in sentences]
            scores = [
                self.rouge(own, " ".join(texts[:i] + texts[i + 1 :])) for i, own in enumerate(texts)
            ]
            number = max(1, round(0.3 * len(sentences)))
            numbers[number] += 1
            assert source.count(MASK) == number
            left, chosen = iter(target), []
            kept = self.restored(source, sentences)
            for i, own in enumerate(sentences):
                if i not in kept:
                    assert [next(left) for _ in own] == own
                    chosen.append(i)
            assert next(left, None) is None
            least = min(scores[i] for i in chosen)
            assert all(scores[i] <= least + 1e-12 for i in kept)
        assert len(numbers) > 2

    def text_of(self, token: int) -> str:
        return self.PARTS[token - 1] if 0 < token <= len(self.PARTS) else ""

    @staticmethod
    def restored(source: list[int], sentences: list[list[int]]) -> set[int]:
        """Return which sentences of a text are in the source, in whose place no mask is."""
        at, kept = 0, set[int]()
        for i, own in enumerate(sentences):
            if source[at] == MASK:
                at += 1
            else:
                assert source[at : at + len(own)] == own
                at, kept = at + len(own), kept | {i}
        assert at == len(source)
        return kept

    def test_a_text_of_one_sentence_is_all_target(self) -> None:
        ((source, target),) = pairs(
            Examples(GapSentences(), letters("", *self.PARTS)).batch(
                Inputs(np.array([[1, 2, 7]])), 0
            )
        )
        assert (source, target) == ([MASK], [1, 2, 7])

    def test_lengths_are_those_that_a_model_has_room_for(self) -> None:
        spec = GapSentences()
        assert spec.window_length(4096) == 4095
        assert spec.source_length(4095) == 4096
        assert spec.target_length(4096) == 820  # a fifth of the text, and the token that ends it
