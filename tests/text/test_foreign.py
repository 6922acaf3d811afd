"""A tokenizer.json of any content is taken or refused in one line, at once and in little memory."""

import base64
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from archwright.hf.tokenizers import read_tokenizer
from archwright.spec.errors import UserError
from archwright.text.bpe import raw_bytes, train_here
from archwright.text.foreign import LARGEST, parse, read_json
from archwright.text.selfcheck import PROBE
from archwright.text.tokenizer import Tokenizer
from tests.text.test_tokenizer import END, foreign

MADE = {
    **{kind: json.loads(foreign(kind).to_str()) for kind in ("gpt2", "sentencepiece", "wordpiece")},
    "own": json.loads(train_here([PROBE], 400, [END]).to_str()),
    "bytes": json.loads(raw_bytes([END]).to_str()),
}
ENDS = {"sentencepiece": "</s>", "wordpiece": "[SEP]"}


def changed(kind: str, change: Callable[[dict[str, Any]], object]) -> str:
    content = json.loads(json.dumps(MADE[kind]))
    change(content)
    return json.dumps(content)


def opened(text: str, kind: str) -> Tokenizer:
    """Return a tokenizer after everything that is done with one."""
    tokenizer = Tokenizer(parse(text, "t.json"), ENDS.get(kind, END))
    ids = tokenizer.encode(PROBE + END)
    tokenizer.decode(ids, keep_special=True)
    tokenizer.decode(range(tokenizer.vocab_size))
    return tokenizer


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("i", [4_000_000_000, 1 << 24, 10**30, -1, None, "7", 1.5, True])
def test_ids_are_checked_before_the_library_sees_them(kind: str, i: object) -> None:
    before = psutil.Process().memory_info().rss
    started = time.monotonic()
    places = ["added"] + ["vocab"] * isinstance(MADE[kind]["model"]["vocab"], dict)
    for place in places:

        def change(content: dict[str, Any], place: str = place) -> None:
            if place == "vocab":
                content["model"]["vocab"]["new"] = i
            else:
                token = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
                content["added_tokens"].append(token | {"id": i, "content": "n", "special": True})

        with pytest.raises(UserError, match=r"^t\.json: the token '\w+' has the id ") as caught:
            opened(changed(kind, change), kind)
        assert "\n" not in str(caught.value)
    assert time.monotonic() - started < 5
    assert psutil.Process().memory_info().rss - before < 1e8


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "[]", "{}", "null", '{"model": []}', '{"model": {"vocab": 3}}', "[" * 200_000,
        '{"model": {"vocab": {"a": ' + "9" * 5000 + "}}}", '{"model": {"vocab": {}, "merges": 1}}',
        '{"added_tokens": [3], "model": {"vocab": {}}}',
        f'{{"model": {{"vocab": {{}}}}, "normalizer": {"[" * 900}{"]" * 900}}}',
    ],
)  # fmt: skip
def test_what_is_no_tokenizer_is_told(text: str) -> None:
    with pytest.raises(UserError, match=r"^t\.json is not a tokenizer\.json: ") as caught:
        parse(text, "t.json")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_letter_that_is_no_byte_gives_the_slower_way() -> None:
    """It was a KeyError."""

    def change(content: dict[str, Any]) -> None:
        content["model"]["vocab"]["中"] = len(content["model"]["vocab"])

    assert not opened(changed("own", change), "own").is_fast


def test_no_panic_of_the_library_escapes(capfd: pytest.CaptureFixture[str]) -> None:
    def change(content: dict[str, Any]) -> None:
        pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}
        content["pre_tokenizer"] = pattern | {"invert": False}

    with pytest.raises(UserError, match=r"^data\.tokenizer: its parts contradict each other"):
        opened(changed("gpt2", change), "gpt2")
    assert capfd.readouterr().err == ""
    os.write(2, b"heard again")
    assert capfd.readouterr().err == "heard again"


def test_text_that_grows_without_end_is_refused() -> None:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 50}

    def change(content: dict[str, Any]) -> None:
        content["normalizer"] = {"type": "Sequence", "normalizers": [step] * 6}

    with pytest.raises(UserError, match="the normalizer may lengthen a text"):
        opened(changed("gpt2", change), "gpt2")


def _settings(**parts: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content.update(parts)


LONG = "a" * 10_000_000
FLAGS = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized", "special"], False)
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
BETWEEN = {"type": "Replace", "pattern": {"Regex": "(?=)"}, "content": "x"}
"""Puts a letter before each letter, and so doubles a text."""
TABLE = base64.b64encode(bytes(4) + b"a\0" + b"b" * 300 + b"\0").decode()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (_settings(normalizer={"type": "Prepend", "prepend": LONG}), "settings: found 10,000,"),
        (_settings(normalizer={"type": "Prepend", "prepend": "a" * 999}), "may lengthen a text"),
        (_settings(decoder={"type": "WordPiece", "prefix": LONG, "cleanup": True}), "settings: "),
        (_settings(pre_tokenizer={"type": "Sequence", "pretokenizers": [BYTES] * 24}), "may lengthen"),
        (_settings(normalizer={"type": "Sequence", "normalizers": [BETWEEN] * 24}), "may lengthen"),
        (_settings(normalizer={"type": "Precompiled", "precompiled_charsmap": TABLE}), "may lengthen"),
        (_settings(normalizer={"type": "Sequence", "normalizers": [{"type": "NFKD"}] * 9999}),
         "settings: found"),
        (_settings(added_tokens=[{"id": 400, "content": LONG, **FLAGS}]), "the token 'a+'... has more than 4,096"),
        (lambda content: content["model"]["vocab"].update({LONG: 400}), "the token 'a+'... has more than 4,096"),
        (lambda content: content["model"].update(dropout=0.1), "dropout or alpha = 0.1; expected no"),
    ],
)  # fmt: skip
def test_settings_out_of_all_measure_are_refused(
    change: Callable[[dict[str, Any]], object], line: str
) -> None:
    text, before = changed("own", change), psutil.Process().memory_info().rss
    started = time.monotonic()
    with pytest.raises(UserError, match=rf"^t\.json: .*{line}") as caught:
        opened(text, "own")
    assert len(str(caught.value)) < 200
    assert time.monotonic() - started < 5
    assert psutil.Process().memory_info().rss - before < 5e8


@pytest.mark.parametrize(
    "padding", [{"strategy": {"Fixed": 2_000_000_000}}, {"pad_to_multiple_of": 2_000_000_000}]
)
def test_padding_is_left_aside(padding: dict[str, Any], tmp_path: Path) -> None:
    usual = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None}
    usual |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    text = changed("own", _settings(padding=usual | padding))
    (tmp_path / "tokenizer.json").write_text(text)
    found = read_tokenizer(tmp_path, 400)  # which encodes before there is a Tokenizer
    assert found is not None
    assert found.encode("a").size == 1


def test_files_are_bounded_and_regular(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(UserError, match=r"expected a tokenizer\.json of at most"):
        read_json(path)
    path.write_bytes(b'{"\xff')
    with pytest.raises(UserError, match=r"\S+: not UTF-8 at byte 2; expected"):
        read_json(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="found a pipe; expected a file"):
        read_json(path)


def token_layout(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(content, dict | list):
        for key in content if isinstance(content, dict) else range(len(content)):
            found += token_layout(content[key], (*path, key))
    return found
