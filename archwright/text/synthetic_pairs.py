"""Two artificial languages, and sentences with the same meaning in both.

The source has the order subject, verb, object, with adjectives before nouns; articles agree with number.
The target puts verbs at the end, adverbs before verbs, and adjectives after nouns. Its nouns have one of three genders,
which a model must memorise. Its articles, adjectives and verbs have endings for gender and number.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

FORMAT = 1
"""Version of fingerprints; incremented if the same seeds give different sentences."""
HELD_OUT_SHARE = 8
"""One in this many sentences is held out, by hash."""
NOUNS, ADJECTIVES, VERBS, ADVERBS, PREPOSITIONS = 120, 60, 60, 20, 10
"""Number of words of each class in either language, without articles."""
ADJECTIVES_OF_A_NOUN = range(3)
"""Possible numbers of adjectives per noun."""
MORE_ADJECTIVES = range(2, 5)
"""Possible numbers of adjectives per noun in longer sentences."""
LONGEST = 15
"""Maximum words of a sentence from `draw`."""
GENDERS = 3

PLURAL = "s"
ARTICLES = {(False, False): "un", (False, True): "des", (True, False): "la", (True, True): "los"}
"""Source articles by (definite, plural)."""
TARGET_ARTICLES = ("ein", "der")
"""Target articles without endings: indefinite, definite."""
ENDINGS = ("o", "a", "e", "oj", "aj", "ej")
"""Endings of target articles and adjectives: singular by gender, then plural by gender."""
NOUN_ENDINGS = ("", "en")
VERB_ENDINGS = ("t", "st", "lt", "n", "sn", "ln")
"""Endings of target verbs, in the order of `ENDINGS`."""


class Phrase(NamedTuple):
    """A noun with an article and adjectives. Words are indices into the lexicon."""

    noun: int
    adjectives: tuple[int, ...]
    is_plural: bool
    is_definite: bool

    @property
    def ending(self) -> int:
        """Index of the ending for gender and number."""
        return self.noun % GENDERS + GENDERS * self.is_plural


class Sentence(NamedTuple):
    """The meaning of a sentence. Words are indices into the lexicon."""

    subject: Phrase
    verb: int
    object: Phrase
    place: tuple[int, Phrase] | None = None
    """A preposition and its phrase."""
    adverb: int | None = None


def draw(generator: np.random.Generator) -> Sentence:
    """Draw a sentence: a pure function of the generator."""
    subject, thing = _phrase(generator), _phrase(generator)
    verb, adverb = int(generator.integers(VERBS)), int(generator.integers(ADVERBS))
    place = int(generator.integers(PREPOSITIONS)), _phrase(generator)
    has_place, has_adverb = (generator.random(2) < 0.5).tolist()
    return Sentence(
        subject, verb, thing, place if has_place else None, adverb if has_adverb else None
    )


def draw_longer(generator: np.random.Generator) -> Sentence:
    """Draw a sentence of 16 to 21 words. Sentences of `draw` are shorter."""
    while True:
        subject, thing, there = (_phrase(generator, MORE_ADJECTIVES) for _ in range(3))
        verb, adverb = int(generator.integers(VERBS)), int(generator.integers(ADVERBS))
        place = int(generator.integers(PREPOSITIONS)), there
        sentence = Sentence(subject, verb, thing, place, adverb)
        if len(source_text(sentence).split()) > LONGEST:
            return sentence


def source_text(sentence: Sentence) -> str:
    """Return a sentence in the source language (5 to 15 words from `draw`)."""
    words = [*_source_phrase(sentence.subject), SOURCE.verbs[sentence.verb]]
    words += _source_phrase(sentence.object)
    if sentence.place:
        words += [SOURCE.prepositions[sentence.place[0]], *_source_phrase(sentence.place[1])]
    if sentence.adverb is not None:
        words.append(SOURCE.adverbs[sentence.adverb])
    return " ".join(words)


def target_text(sentence: Sentence) -> str:
    """Return a sentence in the target language, with equally many words."""
    words = _target_phrase(sentence.subject)
    if sentence.place:
        words += [TARGET.prepositions[sentence.place[0]], *_target_phrase(sentence.place[1])]
    words += _target_phrase(sentence.object)
    if sentence.adverb is not None:
        words.append(TARGET.adverbs[sentence.adverb])
    return " ".join([*words, TARGET.verbs[sentence.verb] + VERB_ENDINGS[sentence.subject.ending]])


def is_held_out(source: str) -> bool:
    """True if a sentence is for evaluation, never for training."""
    digest = hashlib.blake2b(source.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % HELD_OUT_SHARE == 0


def _phrase(
    generator: np.random.Generator, numbers: Sequence[int] = ADJECTIVES_OF_A_NOUN
) -> Phrase:
    noun, number = int(generator.integers(NOUNS)), numbers[int(generator.integers(len(numbers)))]
    adjectives = tuple(generator.integers(ADJECTIVES, size=number).tolist())
    is_plural, is_definite = (generator.random(2) < 0.5).tolist()
    return Phrase(noun, adjectives, is_plural, is_definite)


def _source_phrase(phrase: Phrase) -> list[str]:
    noun = SOURCE.nouns[phrase.noun] + PLURAL * phrase.is_plural
    article = ARTICLES[phrase.is_definite, phrase.is_plural]
    return [article, *(SOURCE.adjectives[i] for i in phrase.adjectives), noun]


def _target_phrase(phrase: Phrase) -> list[str]:
    ending = ENDINGS[phrase.ending]
    article = TARGET_ARTICLES[phrase.is_definite] + ending
    noun = TARGET.nouns[phrase.noun] + NOUN_ENDINGS[phrase.is_plural]
    # The adjective next to the noun is the same in both languages.
    return [article, noun, *(TARGET.adjectives[i] + ending for i in reversed(phrase.adjectives))]


class Lexicon(NamedTuple):
    """The words of a language without endings, by index."""

    nouns: Sequence[str]
    adjectives: Sequence[str]
    verbs: Sequence[str]
    adverbs: Sequence[str]
    prepositions: Sequence[str]

    @classmethod
    def of(cls, consonants: str, vowels: str, seed: int) -> "Lexicon":
        """Generate distinct words of three syllables, each a consonant and a vowel."""
        syllables = [c + v for c in consonants for v in vowels]
        sizes = (NOUNS, ADJECTIVES, VERBS, ADVERBS, PREPOSITIONS)
        generator = np.random.default_rng(seed)
        numbers = generator.choice(len(syllables) ** 3, sum(sizes), replace=False).tolist()
        words = [
            "".join(syllables[n // len(syllables) ** k % len(syllables)] for k in range(3))
            for n in numbers
        ]
        ends = np.cumsum(sizes).tolist()
        return cls(*(words[end - size : end] for size, end in zip(sizes, ends, strict=True)))


SOURCE = Lexicon.of("bdfgklmnprtv", "aeiou", 1)
TARGET = Lexicon.of("bdghjklmrstz", "aiouy", 2)
