"""PEGASUS's objective: the principal sentences of a text."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from archwright.classic.spec.gap_sentences import GapSentences
from archwright.data.corruption import Row, Sentences
from archwright.data.objectives import MakeBatch, Pair, Vocabulary, of_texts

WORD = re.compile(r"[^\W_]+")


def gap_sentences(spec: GapSentences, vocabulary: Vocabulary) -> MakeBatch:
    """Mask the principal sentences in the source and predict them; nothing is random."""
    mask_id = vocabulary.special_id(spec.mask_token, "objective.mask_token")
    sentences = Sentences([vocabulary.decode([i]) for i in range(vocabulary.size)])

    def pair(text: Row, generator: np.random.Generator) -> Pair:
        parts = sentences.split(text)
        texts = [vocabulary.decode(part.tolist()) for part in parts]
        chosen = principal(texts, max(1, round(spec.share * len(parts))))
        source = [np.array([mask_id]) if i in chosen else part for i, part in enumerate(parts)]
        return np.concatenate(source), np.concatenate([parts[i] for i in chosen])

    return of_texts(pair, spec.source_length, vocabulary.ends)


def principal(sentences: Sequence[str], number: int) -> list[int]:
    """Return the indices of the `number` most representative sentences, ascending.

    The score of a sentence is the F1 of ROUGE-1, 2 |S and R| / (|S| + |R|), with the set S of its words and the set R
    of all other sentences' words. Words are runs of letters and digits, in lower case. Ties go to the earlier sentence.

    Source: Zhang et al. (2019), PEGASUS, section 3.1, "Ind" and "Uniq".
    """
    word_sets = [{*WORD.findall(sentence.lower())} for sentence in sentences]
    frequency = Counter(word for words in word_sets for word in words)
    scores = []
    for words in word_sets:
        shared = sum(frequency[word] > 1 for word in words)
        rest = len(frequency) - (len(words) - shared)  # without words of this sentence only
        scores.append(2 * shared / max(1, len(words) + rest))
    best = sorted(range(len(word_sets)), key=lambda i: -scores[i])[:number]
    return sorted(best)
