"""Tokenizers from foreign files, validated before use."""

import base64
import json
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

import tokenizers

from archwright.spec.errors import UserError
from archwright.spec.files import read_text

LARGEST = 1 << 26
"""Maximum bytes of a tokenizer.json; the largest published ones have 35 million."""
LARGEST_ID = 1 << 24
GROWTH = 1 << 8
"""Maximum factor by which a tokenizer may lengthen a text. Published ones map a character to one or two."""
SETTINGS, ADDED, LONGEST = 1 << 15, 1 << 20, 1 << 12
"""Maximum characters: settings in total, added tokens in total (the library compiles them), and a single token."""
CHARACTERS = re.compile(r'"precompiled_charsmap": "[^"]*"')
STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
GAPS = 1 << 16
"""Maximum number of unused ids, in addition to one per token. Memory and time grow with the largest id."""

_STANDARD_ERROR = Lock()
"""Held while standard error is redirected. Otherwise a second thread would save the redirected descriptor."""


def read_json(path: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of a tokenizer.json.

    Raises:
        UserError: The file is missing or malformed.
    """
    try:
        text = read_text(path, LARGEST, "a tokenizer.json")
    except OSError as error:
        raise UserError(f'cannot read "{path}": {error.strerror or error}.') from error
    return parse(text, f'"{path}"')


def parse(text: str, name: str) -> tokenizers.Tokenizer:
    """Return the tokenizer that the text of a tokenizer.json describes.

    Raises:
        UserError: The text is malformed; the message starts with `name`.
    """
    # The library does not validate ids.
    try:
        content = json.loads(text)
    except RecursionError:
        raise UserError(f"{name} is not a tokenizer.json: it is nested too deeply.") from None
    except ValueError as error:
        raise UserError(f"{name} is not a tokenizer.json: {_line(error)}.") from None
    model = content.get("model") if isinstance(content, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(vocab, dict | list):
        raise UserError(f"{name} is not a tokenizer.json: it has no model with a vocabulary.")
    # A unigram model's vocabulary is a list; ids are its indices.
    of_list = ((str(piece), i) for i, piece in enumerate(vocab))
    ids = [*(vocab.items() if isinstance(vocab, dict) else of_list)]
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise UserError(f"{name} is not a tokenizer.json: added_tokens is not a list of tokens.")
    check_ids([*ids, *((str(token.get("content")), token.get("id")) for token in added)], name)
    with library_errors(f"{name} is not a tokenizer.json"), quiet():
        _check_settings(content, name)
        inner = tokenizers.Tokenizer.from_str(text)
        inner.no_padding()  # which may be 2^32 tokens in every encoding
        inner.no_truncation()
        return inner


def _check_settings(content: Mapping[str, Any], name: str) -> None:
    """Refuse settings that take minutes or gigabytes, or that give random ids."""
    model = content["model"]
    added = [str(token.get("content")) for token in content.get("added_tokens") or []]
    settings = {key: value for key, value in model.items() if key not in ("vocab", "merges")}
    serialised = json.dumps([settings, *map(content.get, STEPS)])
    for what, size, most in (
        ("settings", len(CHARACTERS.sub("", serialised)), SETTINGS),
        ("added_tokens", sum(map(len, added)), ADDED),
    ):
        if size > most:
            raise UserError(f"{name}: {what}: found {size:,} characters; expected at most {most:,}")
    for steps in (("normalizer", "pre_tokenizer"), ("decoder",)):
        if _growth([*map(content.get, steps)]) > GROWTH:
            raise UserError(f"{name}: the {steps[0]} may lengthen a text more than {GROWTH} times.")
    if (chance := model.get("dropout")) or (chance := model.get("alpha")):
        raise UserError(f"{name}: model: found dropout or alpha = {chance}; expected no random ids")


def hiding(inner: tokenizers.Tokenizer, names: Collection[str]) -> tokenizers.Tokenizer:
    """Return a tokenizer that never encodes text to `names`, except the unknown token.

    Ids stay the same. Hidden names start with a null character and a space, unlike any pre-tokenized text.
    """
    content = json.loads(inner.to_str())
    model = content["model"]
    hidden = {name: f"\0 {name}" for name in names if name != model.get("unk_token")}
    content["added_tokens"] = [t for t in content["added_tokens"] if t["content"] not in hidden]
    if isinstance(model["vocab"], list):
        model["vocab"] = [(hidden.get(name, name), score) for name, score in model["vocab"]]
    else:
        model["vocab"] = {hidden.get(name, name): i for name, i in model["vocab"].items()}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    tokenizer.encode_special_tokens = True
    return tokenizer


def check_ids(ids: Collection[tuple[str, object]], name: str) -> None:
    """Refuse a vocabulary with invalid ids, wide gaps or very long tokens.

    Raises:
        UserError: On the first such token; the message starts with `name`.
    """
    for token, i in ids:
        start = f"{name}: the token {token[:40]!r}"
        if len(token) > LONGEST:
            raise UserError(f"{start}... has more than {LONGEST:,} characters.")
        if not isinstance(i, int) or isinstance(i, bool) or i < 0:
            raise UserError(f"{start} has the id {str(i)[:40]}.")
        if i >= LARGEST_ID or i >= 2 * len(ids) + GAPS:
            raise UserError(
                f"{start} has the id {str(i)[:40]}, in a vocabulary of "
                f"{len(ids):,} tokens; expected ids without wide gaps, below {LARGEST_ID:,}."
            )


def begin_of(inner: tokenizers.Tokenizer) -> str:
    """Return the token added before a text; empty if there is none.

    Raises:
        UserError: The parts of the tokenizer contradict each other.
    """
    with library_errors("data.tokenizer"), quiet():
        plain = inner.encode("a", add_special_tokens=False).ids
        framed = inner.encode("a", add_special_tokens=True)
    return framed.tokens[0] if framed.ids[: len(plain)] != plain else ""


@contextmanager
def library_errors(name: str) -> Iterator[None]:
    """Turn errors of the tokenizers library into one-line errors about `name`.

    Raises:
        UserError: The error of the library.
    """
    try:
        yield
    except (UserError, UnicodeEncodeError, MemoryError):
        raise
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{name}: {_line(error)}.") from error
    except BaseException as error:
        # A Rust panic is no Exception, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{name}: its parts contradict each other ({_line(error)}).") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Silence standard error, where the library's Rust code reports panics at length."""
    with _STANDARD_ERROR:
        try:
            saved = os.dup(2)
        except OSError:  # there is no standard error
            yield
            return
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            os.close(null)


def _growth(part: object) -> int:
    """Return the maximum factor by which a serialised step lengthens a text."""
    if isinstance(part, list):
        return math.prod(_growth(step) for step in part)
    if not isinstance(part, dict):
        return 1
    factor, kind, content = 1, part.get("type"), part.get("content")
    if kind == "Replace" and isinstance(content, str):
        pattern = part.get("pattern")
        literal = isinstance(pattern, dict) and pattern.get("String")
        factor = max(1, len(content)) if literal else 1 + len(content)  # between characters
    elif kind == "Prepend":  # to each stretch between added tokens
        factor = 1 + len(str(part.get("prepend")))
    elif kind == "ByteLevel":  # each byte becomes a character of up to two bytes
        factor = 2
    elif kind == "Precompiled":  # trie size, trie, null-terminated strings
        with suppress(ValueError):
            table = base64.b64decode(str(part.get("precompiled_charsmap")))
            strings = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
            factor = longest if (longest := max(map(len, strings))) > GROWTH else 1
    return factor * math.prod(_growth(step) for step in part.values() if isinstance(step, list))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200].rstrip(".")
