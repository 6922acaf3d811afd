"""A tokenizer with words as tokens."""

from collections.abc import Sequence

import tokenizers
from tokenizers import models, pre_tokenizers

from archwright.text.tokenizer import Tokenizer

END_OF_TEXT, UNKNOWN = "<|endoftext|>", "<|unknown|>"


def word_tokenizer(words: Sequence[str]) -> Tokenizer:
    """Return a tokenizer of space-separated words. Ids are indices; the unknown token and end-of-text follow."""
    names = (*words, UNKNOWN)
    vocabulary = {name: i for i, name in enumerate(names)}
    inner = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens([END_OF_TEXT])
    return Tokenizer(inner, END_OF_TEXT)
