"""Text as it comes: whole characters, and nothing of a stop string."""

from functools import cache

import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from archwright.generation.text_stream import Characters, StopStrings
from archwright.text.bpe import raw_bytes
from archwright.text.tokenizer import Tokenizer

END = "<|endoftext|>"
LETTERS = st.text("ab", max_size=12)


def naive_cut(text: str, stops: list[str]) -> str:
    """Return the text before the stop string that ends first, the longest of these."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return text


@given(
    parts=st.lists(LETTERS, max_size=8),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
)
def test_text_ends_before_the_first_stop_string(parts: list[str], stops: list[str]) -> None:
    """However the text is cut into tokens; and what was shown once is never taken back."""
    cut, shown = naive_cut("".join(parts), stops), ""
    stream = StopStrings(stops)
    for part in parts:
        shown += stream.add(part)
        assert cut.startswith(shown)
        if stream.found:
            break
    assert shown + stream.rest() == cut
    assert stream.found == (cut != "".join(parts))


@given(parts=st.lists(LETTERS, max_size=8))
def test_without_stop_strings_nothing_is_held_back(parts: list[str]) -> None:
    stream = StopStrings(())
    assert [stream.add(part) for part in parts] == parts


@given(content=st.binary(max_size=12))
def test_bytes_come_as_the_characters_of_all_of_them(content: bytes) -> None:
    characters = Characters(Tokenizer(raw_bytes([END]), END))
    text = "".join(characters.add(byte) for byte in content) + characters.rest()
    assert text == content.decode("utf-8", "replace")


def test_special_tokens_have_no_text_unless_their_names_are_kept() -> None:
    tokenizer = Tokenizer(raw_bytes([END, "<x>"]), END)
    ids = [97, 257, 98]
    for keep in (False, True):
        characters = Characters(tokenizer, keep_special=keep)
        found = "".join(map(characters.add, ids)) + characters.rest()
        assert found == tokenizer.decode(ids, keep_special=keep)


@cache
def pieces() -> Tokenizer:
    """A tokenizer whose text depends on neighbours: word pieces, in lower case."""
    words = [END, "[UNK]", *"abcxyz", *("##" + c for c in "abcxyz"), "the", "##ing", ",", "."]
    inner = tokenizers.Tokenizer(
        models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]")
    )
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.add_special_tokens([END])
    return Tokenizer(inner, END)


@given(ids=st.lists(st.integers(1, 17), min_size=1, max_size=20), split=st.integers(0, 20))
def test_pieces_of_words_come_as_the_text_of_all_of_them(ids: list[int], split: int) -> None:
    """After a prompt as well, of which nothing comes again."""
    tokenizer = pieces()
    assert tokenizer.token_bytes is None
    prompt, new = ids[:split], ids[split:]
    characters = Characters(tokenizer, prompt)
    text = "".join(map(characters.add, new)) + characters.rest()
    assert tokenizer.decode(prompt) + text == tokenizer.decode(ids)
