"""The two made-up languages, against a translator that knows nothing but the words and their rules."""

import numpy as np

from archwright.text.pairs import SyntheticPairs
from archwright.text.synthetic_pairs import (
    ARTICLES,
    ENDINGS,
    NOUN_ENDINGS,
    SOURCE,
    TARGET,
    TARGET_ARTICLES,
    VERB_ENDINGS,
    Phrase,
    Sentence,
    is_held_out,
    source_text,
    target_text,
)


def test_a_sentence_by_hand() -> None:
    sentence = Sentence(
        subject=Phrase(noun=4, adjectives=(7, 9), is_plural=True, is_definite=False),
        verb=3,
        object=Phrase(noun=2, adjectives=(), is_plural=False, is_definite=True),
        place=(5, Phrase(noun=0, adjectives=(1,), is_plural=False, is_definite=False)),
        adverb=6,
    )
    s, t = SOURCE, TARGET
    assert source_text(sentence) == (
        f"des {s.adjectives[7]} {s.adjectives[9]} {s.nouns[4]}s {s.verbs[3]} la {s.nouns[2]} "
        f"{s.prepositions[5]} un {s.adjectives[1]} {s.nouns[0]} {s.adverbs[6]}"
    )
    # Noun 4 is of gender 1, noun 2 of gender 2 and noun 0 of gender 0.
    assert target_text(sentence) == (
        f"einaj {t.nouns[4]}en {t.adjectives[9]}aj {t.adjectives[7]}aj "
        f"{t.prepositions[5]} eino {t.nouns[0]} {t.adjectives[1]}o dere {t.nouns[2]} "
        f"{t.adverbs[6]} {t.verbs[3]}sn"
    )


def translated(source: str) -> str:
    """Translate by reading words from left to right."""
    words, articles = source.split(), {word: key for key, word in ARTICLES.items()}
    kinds = {w: (k, i) for k, ws in SOURCE._asdict().items() for i, w in enumerate(ws)}
    phrases, verb, adverb, preposition, subject_ending = [], "", [], [], 0
    while words:
        word = words.pop(0)
        if word in articles:
            definite, plural = articles[word]
            adjectives = []
            while kinds.get(words[0], ("",))[0] == "adjectives":
                adjectives.append(kinds[words.pop(0)][1])
            noun = kinds[words.pop(0).removesuffix("s")][1]
            ending = noun % 3 + 3 * plural
            subject_ending = subject_ending if phrases else ending
            phrases.append(
                [
                    TARGET_ARTICLES[definite] + ENDINGS[ending],
                    TARGET.nouns[noun] + NOUN_ENDINGS[plural],
                    *(TARGET.adjectives[i] + ENDINGS[ending] for i in adjectives[::-1]),
                ]
            )
            continue
        kind, number = kinds[word]
        if kind == "verbs":
            verb = TARGET.verbs[number] + VERB_ENDINGS[subject_ending]
        elif kind == "adverbs":
            adverb = [TARGET.adverbs[number]]
        else:
            preposition = [TARGET.prepositions[number]]
    subject, thing, place = (*phrases, [])[:3]
    return " ".join([*subject, *preposition, *place, *thing, *adverb, verb])


def test_sentences_are_translated_by_the_rules() -> None:
    lengths = set()
    for i in range(500):
        pair = SyntheticPairs("train").pair(3, i)
        assert pair.target == translated(pair.source)
        assert len(pair.source.split()) == len(pair.target.split())
        lengths.add(len(pair.source.split()))
    assert lengths == {*range(5, 16)}


def test_longer_sentences_are_longer_than_any_trained_on() -> None:
    for i in range(300):
        pair = SyntheticPairs("longer").pair(0, i)
        assert pair.target == translated(pair.source)
        assert 15 < len(pair.source.split()) == len(pair.target.split()) <= 21


def test_there_are_words_and_sentences_enough() -> None:
    for lexicon in (SOURCE, TARGET):
        words = [word for words in lexicon for word in words]
        assert len(words) == len(set(words)) >= 200
    phrases = 120 * (1 + 60 + 60**2) * 4
    sentences = phrases**2 * 60 * (1 + 10 * phrases) * (1 + 20)
    assert sentences > 10**6


def test_no_sentence_is_on_both_sides() -> None:
    held_out = [SyntheticPairs("held_out").pair(0, i).source for i in range(500)]
    assert len({*held_out}) > 495  # sentences are drawn, so that one may come twice
    assert all(map(is_held_out, held_out))
    train = [SyntheticPairs("train").pair(seed, i).source for seed in range(3) for i in range(300)]
    assert not any(map(is_held_out, train))


def test_an_eighth_of_what_is_drawn_is_held_out() -> None:
    generator = np.random.default_rng(0)
    words = ["".join(generator.choice([*"abcdefgh"], 9)) for _ in range(4000)]
    assert abs(np.mean([is_held_out(word) for word in words]) - 1 / 8) < 0.02
