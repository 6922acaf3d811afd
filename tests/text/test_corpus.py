"""Documents keep their borders and their text, and every one is on exactly one side."""

import hashlib
import json
import os
import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archwright.spec.data import DataSpec
from archwright.spec.errors import UserError
from archwright.text.corpus import Corpus, Documents, _documents, open_corpus, open_texts
from archwright.text.reading import Span


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def corpus(*sources: Path | str, **options: object) -> Corpus:
    return open_corpus(DataSpec.model_validate({"text": [str(s) for s in sources], **options}))


def texts(documents: Documents) -> list[str]:
    return ["".join(document.pieces) for document in documents]


def message(*sources: Path | str, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        corpus(*sources, **options)
    return str(caught.value)


def is_held_out(name: str) -> bool:
    """The rule, written down again."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:2], 16) % 10 == 0


def test_a_folder_is_split_by_the_hash_of_each_name(tmp_path: Path) -> None:
    files = {f"d{i % 3}/{i}.txt": f"text of file {i}\n" for i in range(60)}
    for name, text in files.items():
        write(tmp_path / name, text)
    found = corpus(tmp_path)
    held_out = {name for name in files if is_held_out(name)}
    assert {d.name for d in found.held_out} == held_out
    assert {d.name for d in found.train} == files.keys() - held_out
    assert sorted(texts(found.train) + texts(found.held_out)) == sorted(files.values())
    assert found.train.size == sum(len(files[n]) for n in files.keys() - held_out)


def test_documents_can_be_read_again(tmp_path: Path) -> None:
    for i in range(60):
        write(tmp_path / f"{i}.txt", f"text {i}")
    found = corpus(tmp_path)
    assert texts(found.train) == texts(found.train)


def test_records_of_a_jsonl_file_are_split_one_by_one(tmp_path: Path) -> None:
    records = [f"text number {i}\nwith ü" for i in range(100)]
    lines = [json.dumps({"id": i, "body": text}) for i, text in enumerate(records)]
    write(tmp_path / "a.jsonl", "\n".join(lines) + "\n\n")
    found = corpus(tmp_path / "a.jsonl", field="body")
    held_out = [t for i, t in enumerate(records) if is_held_out(f"a.jsonl:{i}")]
    assert texts(found.held_out) == held_out
    assert texts(found.train) == [t for t in records if t not in held_out]


@pytest.mark.parametrize("separator", ["\n\n", "<|end|>", "—"])
def test_a_separator_splits_a_file_into_documents(tmp_path: Path, separator: str) -> None:
    documents = [f"document {i} " + "é x\n" * (i % 7) + "." for i in range(200)]
    path = write(tmp_path / "a.txt", separator.join(documents) + separator)
    found = corpus(path, separator=separator)
    held_out = [d for i, d in enumerate(documents) if is_held_out(f"a.txt:{i}")]
    assert texts(found.held_out) == held_out
    assert texts(found.train) == [d for d in documents if d not in held_out]


def test_a_separator_across_the_border_of_two_reads_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.txt", "a--b---c-d--e--" * 20)
    expected = [part for part in ("a--b---c-d--e--" * 20).split("--") if part]
    for block in range(1, 9):
        monkeypatch.setattr("archwright.text.reading.BLOCK", block)
        assert texts(open_texts((str(path),), DataSpec(separator="--"))) == expected


def test_a_single_file_holds_out_its_last_tenth_from_a_line_on(tmp_path: Path) -> None:
    text = "".join(f"line {i}: ünïcode\n" for i in range(1000))
    found = corpus(write(tmp_path / "a.txt", text))
    (train,), (held_out,) = texts(found.train), texts(found.held_out)
    assert train + held_out == text
    assert train.endswith("\n")
    assert 0.099 < len(held_out) / len(text) < 0.101


def test_the_tail_is_held_out_across_files_when_the_hash_leaves_a_side_empty(
    tmp_path: Path,
) -> None:
    names = [f"{i}.txt" for i in range(100) if not is_held_out(f"{i}.txt")][:4]
    for name in names:
        write(tmp_path / name, name[0] * 49 + "\n")
    found = corpus(tmp_path)
    assert "".join(texts(found.train) + texts(found.held_out)) == "".join(
        sorted(name[0] * 49 + "\n" for name in names)
    )
    assert len("".join(texts(found.held_out))) == 20


@pytest.mark.parametrize("separator", ["", "\n--\n"])
def test_a_duplicate_is_on_the_side_of_its_first_copy(tmp_path: Path, separator: str) -> None:
    """Of the entropy of a text with copies of what is trained on, a loss shows nothing."""
    copies = [f"text number {i % 60}" for i in range(720)]
    random.Random(0).shuffle(copies)
    name = "a.txt" if separator else "a.jsonl"
    lines = copies if separator else [json.dumps({"text": text}) for text in copies]
    path = write(tmp_path / name, (separator or "\n").join(lines))
    expected: dict[str, bool] = {}
    for i, text in enumerate(copies):
        expected.setdefault(text, is_held_out(f"{name}:{i}"))
    found = corpus(path, separator=separator)
    assert texts(found.held_out) == [text for text in copies if expected[text]] != []
    assert texts(found.train) == [text for text in copies if not expected[text]]
    for part in found.train.parts(1):
        assert not {*texts(part)} & {*texts(found.held_out)}


def test_a_file_and_a_record_can_be_duplicates(tmp_path: Path) -> None:
    records = [json.dumps({"text": f"text {i}"}) for i in range(40)]
    write(tmp_path / "a.jsonl", "\n".join(records))
    for i in range(40):
        write(tmp_path / f"{i}.txt", f"text {39 - i}")
    found = corpus(tmp_path)
    assert len(texts(found.train) + texts(found.held_out)) == 80
    assert not {*texts(found.train)} & {*texts(found.held_out)}


@pytest.mark.parametrize(
    ("order", "held_out"),
    [
        ("abcdefghijab", "j"),  # the tail begins at "j"; copies of "a" and "b" are trained on
        ("abcdefghiaab", "i"),
        ("abcdefghijjj", "jjj"),
    ],
)
def test_a_duplicate_in_the_tail_is_trained_on(
    tmp_path: Path, order: str, held_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Span, "held_out", False)
    lines = [json.dumps({"text": letter * 9}) for letter in order]
    found = corpus(write(tmp_path / "a.jsonl", "\n".join(lines)))
    assert texts(found.held_out) == [letter * 9 for letter in held_out]
    assert sorted(texts(found.train) + texts(found.held_out)) == sorted(c * 9 for c in order)


def test_copies_of_one_text_cannot_be_split(tmp_path: Path) -> None:
    copies = [write(tmp_path / f"{i}.txt", "all there is\n" * 9) for i in range(20)]
    assert "Give more documents that differ, or name a text in data.held_out" in message(*copies)


def test_held_out_documents_that_are_trained_on_are_reported(tmp_path: Path) -> None:
    for name, numbers in (("train", range(30)), ("held", range(28, 36))):
        lines = [json.dumps({"text": f"text {i}"}) for i in numbers]
        write(tmp_path / f"{name}.jsonl", "\n".join(lines))
    line = (
        "data.held_out: 2 of 8 documents (25 %) are also in data.text: losses on them do not show what a model does "
        "with new text"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(line)}$"):
        corpus(tmp_path / "train.jsonl", held_out=[str(tmp_path / "held.jsonl")])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="ab\n é中\r", min_size=2, max_size=60))
def test_the_tail_split_never_loses_a_character(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "a.txt", text)
    try:
        found = corpus(path)
    except UserError as error:
        raise AssertionError(f"{text!r} could be split") from error
    (train,), (held_out,) = texts(found.train), texts(found.held_out)
    assert train + held_out == text


def test_two_records_are_one_to_train_and_one_held_out(tmp_path: Path) -> None:
    lines = [json.dumps({"text": t}) for t in ("first", "second")]
    found = corpus(write(tmp_path / "a.jsonl", "\n".join(lines)))
    assert (texts(found.train), texts(found.held_out)) == (["first"], ["second"])


def test_a_single_record_cannot_be_split(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps({"text": "all there is"}))
    assert "data.held_out" in message(path)


def test_held_out_files_are_never_trained_on(tmp_path: Path) -> None:
    for i in range(20):
        write(tmp_path / f"{i:02}.txt", f"text {i}")
    found = corpus(tmp_path, held_out=[str(tmp_path / "07.txt")])
    assert texts(found.held_out) == ["text 7"]
    assert texts(found.train) == [f"text {i}" for i in range(20) if i != 7]
    links = [tmp_path / "links" / f"{i:02}.txt" for i in range(20)]
    links[0].parent.mkdir()
    for link in links:
        link.symlink_to(tmp_path / link.name)
    found = corpus(*links, held_out=[str(tmp_path / "07.txt")])
    assert texts(found.train) == [f"text {i}" for i in range(20) if i != 7]
    path = str(tmp_path / "07.txt")
    assert "nothing is left to train on" in message(path, held_out=[path])


def test_binary_files_in_a_folder_are_skipped_and_counted(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "some text\n" * 10)
    write(tmp_path / "b.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    found = corpus(tmp_path)
    assert found.skipped == ("b.png",)
    assert texts(found.train)[0].startswith("some text")


def test_undecodable_library_files_are_skipped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(30):
        write(tmp_path / f"{i}.py", f"x = {i}\n")
    write(tmp_path / "latin.py", "# é".encode("latin-1"))
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    found = corpus("stdlib")
    assert found.skipped == ("latin.py",)
    assert len(texts(found.train) + texts(found.held_out)) == 30


@pytest.mark.parametrize("where", [0, 5, (1 << 18) - 1, 1 << 18, (1 << 18) + 3])
def test_text_that_is_not_utf8_names_file_and_byte(tmp_path: Path, where: int) -> None:
    path = write(tmp_path / "a.txt", b"x" * where + b"\xe9t\xe9" + b"y" * 100)
    assert message(path) == (
        f'data.text: "{path}" is not UTF-8 at byte {where} (0xe9). '
        "Convert it, or set data.errors=replace to read such bytes as \ufffd."
    )


def test_a_character_cut_off_at_the_end_is_not_utf8(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "abc中".encode()[:-1])
    assert "not UTF-8 at byte 3" in message(path)


def test_undecodable_bytes_can_be_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"caf\xe9 au lait\n" * 10)
    found = corpus(path, errors="replace")
    assert "".join(texts(found.train) + texts(found.held_out)) == "caf\ufffd au lait\n" * 10


def test_characters_across_the_border_of_two_reads_stay_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "aé中😀\r\n" * 30
    path = write(tmp_path / "a.txt", text)
    for block in range(1, 8):
        monkeypatch.setattr("archwright.text.reading.BLOCK", block)
        assert texts(open_texts((str(path),), DataSpec())) == [text]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", b"abc\0def", "is a binary file (a zero at byte 3)"),
        ("a.txt", "text".encode("utf-16"), "is UTF-16, not UTF-8"),
        ("a.bin", bytes(range(1, 32)) * 9, "is a binary file (mostly control bytes)"),
        ("a.txt", b"", "data.text: there is no text; every file is empty."),
        ("a.jsonl", b"\n\n", "data.text: there is no text"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 1}', 'line 2: field "text" is int, not a string'),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b"', "line 2 is not JSON: Expecting"),
        ("a.jsonl", b'{"txt": "a"}', 'line 1: no field "text" (found "txt"). Set data.field.'),
        ("a.jsonl", b'["a"]', "line 1: expected an object, found list."),
        ("a.jsonl", b'{"text": "\\ud800"}', "half a character"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}', "is not UTF-8 at byte 24 (0xff)"),
        ("a.jsonl", b"[" * 99999, "is nested too deeply"),
    ],
)
def test_wrong_content_is_told_in_one_line(
    tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    text = message(write(tmp_path / name, content))
    assert expected in text
    assert "\n" not in text


def test_all_wrong_files_are_told_at_once(tmp_path: Path) -> None:
    first = write(tmp_path / "a.txt", b"\xff")
    second = write(tmp_path / "b.txt", b"\0")
    lines = message(first, second).splitlines()
    assert ["a.txt" in lines[0], "b.txt" in lines[1], len(lines)] == [True, True, 2]


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "text\n" * 100)
    found = corpus(path)
    write(path, "short")
    with pytest.raises(UserError, match="changed while it was read"):
        texts(found.train)


def test_the_fingerprint_follows_content_and_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "text\n" * 100)
    before = corpus(path).fingerprint
    path.touch()
    assert corpus(path).fingerprint == before
    write(path, "Text\n" * 100)
    assert corpus(path).fingerprint != before
    assert corpus(write(tmp_path / "b.txt", "text\n" * 100)).fingerprint != before
    write(path, "text\n" * 100)
    assert corpus(path).fingerprint == before
    assert corpus(path, separator="e").fingerprint != before


def test_the_library_is_held_out_as_promised() -> None:
    found = corpus("stdlib")
    share = found.held_out.size / (found.train.size + found.held_out.size)
    assert 0.05 < share < 0.15
    assert all(is_held_out(d.name) for d in found.held_out)
    assert not any(is_held_out(d.name) for d in found.train)


def test_an_integer_of_any_length_is_no_text(tmp_path: Path) -> None:
    lines = [f'{{"id": {"7" * 5000}, "text": "text {i}"}}' for i in range(20)]
    found = corpus(write(tmp_path / "a.jsonl", "\n".join(lines)))
    assert sorted(texts(found.train) + texts(found.held_out)) == sorted(
        f"text {i}" for i in range(20)
    )
    path = write(tmp_path / "b.jsonl", f'{{"text": {"7" * 5000}}}')
    assert 'field "text" is float, not a string' in message(path)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / os.fsdecode(b"caf\xe9%d.txt" % i)).write_text(f"text {i}")
    found = corpus(tmp_path)
    assert len(texts(found.train) + texts(found.held_out)) == 30
    named = texts(open_texts((str(tmp_path / os.fsdecode(b"caf\xe91.txt")),), DataSpec()))
    assert named == ["text 1"]


def test_a_name_is_hashed_alike_in_any_locale(tmp_path: Path) -> None:
    """Where names are not read as UTF-8, the bytes of such a name come as surrogates."""
    name = "über.txt"
    plain = corpus(write(tmp_path / name, "text\n" * 100))
    (file,) = plain.train.files
    other = replace(
        file, file=replace(file.file, name=os.fsencode(name).decode("ascii", "surrogateescape"))
    )
    made = _documents((other,), DataSpec(), plain.train.choose, 1, "tail/450/train")
    assert made.fingerprint == plain.train.fingerprint


@pytest.mark.parametrize("content", ["x", "é", "\n"])
def test_a_single_character_is_too_short(tmp_path: Path, content: str) -> None:
    assert "too short to hold out a part" in message(write(tmp_path / "one.txt", content))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such file")
def test_a_file_whose_reading_fails_is_named() -> None:
    assert (
        message("/proc/self/mem") == 'data.text: cannot read "/proc/self/mem": Input/output error.'
    )
