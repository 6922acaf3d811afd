"""Pairs from files: what is read, what is held out, and what is said of a wrong line."""

import json
from pathlib import Path

import pytest

from archwright.spec.data import DataSpec
from archwright.spec.errors import UserError
from archwright.text.pairs import open_pairs

PAIRS = [(f"source {i}", f"target {i}") for i in range(200)]


def tsv(path: Path, pairs: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
    return path


def sides(path: Path, *held_out: str) -> list[list[tuple[str, str]]]:
    corpus = open_pairs(DataSpec(pairs=str(path), held_out=held_out))
    return [
        [(pair.source, pair.target) for pair in (side.pair(0, i) for i in range(side.num_pairs))]
        for side in corpus
    ]


def test_tsv_and_jsonl_are_the_same_pairs(tmp_path: Path) -> None:
    other = tmp_path / "b.jsonl"
    lines = [json.dumps({"source": s, "target": t, "more": 1}) for s, t in PAIRS]
    other.write_text("\n\n".join(lines))
    assert sides(tsv(tmp_path / "a.tsv", PAIRS)) == sides(other)


def test_whole_pairs_are_held_out(tmp_path: Path) -> None:
    # A source that stands there with two targets is on one side.
    train, held_out = sides(tsv(tmp_path / "a.tsv", [*PAIRS, *((s, "else") for s, _ in PAIRS)]))
    assert sorted({*train, *held_out}) == sorted({*PAIRS, *((s, "else") for s, _ in PAIRS)})
    assert not {s for s, _ in train} & {s for s, _ in held_out}
    assert 20 < len(held_out) < 80
    assert sides(tsv(tmp_path / "few.tsv", PAIRS[:2])) in (
        [PAIRS[:1], PAIRS[1:2]],
        [PAIRS[1:2], PAIRS[:1]],
    )


def test_pairs_that_a_file_holds_out_are_not_trained_on(tmp_path: Path) -> None:
    other = tsv(tmp_path / "b.tsv", [("source 3", "other"), ("x", "y")])
    train, held_out = sides(tsv(tmp_path / "a.tsv", PAIRS), str(other))
    assert train == PAIRS[:3] + PAIRS[4:]
    assert held_out == [("source 3", "other"), ("x", "y")]


def test_a_fingerprint_is_that_of_the_texts(tmp_path: Path) -> None:
    one = open_pairs(DataSpec(pairs=str(tsv(tmp_path / "a.tsv", PAIRS)))).train
    same = open_pairs(DataSpec(pairs=str(tsv(tmp_path / "b.tsv", PAIRS)))).train
    other = open_pairs(DataSpec(pairs=str(tsv(tmp_path / "c.tsv", PAIRS[::-1])))).train
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert one.size == sum(len(piece) for document in one for piece in document.pieces)


@pytest.mark.parametrize(
    ("name", "contents", "said"),
    [
        ("a.tsv", b"a\tb\n\nc\n", 'line 3: found 1 column; expected a source, a tab and a target'),
        ("a.tsv", b"a\tb\tc\n", "line 1: found 3 columns; expected a source, a tab and a target"),
        ("a.tsv", b"a\tb\nc\t \n", "line 2: the target is empty; expected a text"),
        ("a.tsv", b"a\tb\n\tc\n", "line 2: the source is empty; expected a text"),
        ("a.tsv", b"a\tb\n\xff\tc\n", "line 2: not UTF-8 at byte 1 of the line"),
        ("a.jsonl", b'{"source": "a", "target": "b"}\n{', "line 2: not JSON; expected an object"),
        ("a.jsonl", b'{"source": "a"}', 'line 1: "target": found none; expected a text'),
        ("a.jsonl", b'{"source": 3, "target": ""}', 'line 1: "source": found int; expected a text'),
        ("a.jsonl", b"[1]", "line 1: found list; expected an object with a source and a target"),
        ("a.jsonl", b'{"source": "\\ud800", "target": "b"}', "found half a character"),
        ("a.tsv", b"", "is empty; expected a pair of a source and a target in each line"),
        ("a.tsv", b"a\tb\n", "found pairs of 1 source; expected two sources at least"),
        ("a.txt", b"a\tb\n", "expected a file of pairs: .tsv (a source, a tab and a target in each"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_in_a_line(
    tmp_path: Path, name: str, contents: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(contents)
    with pytest.raises(UserError) as caught:
        open_pairs(DataSpec(pairs=str(tmp_path / name)))
    (line,) = caught.value.lines
    assert line.startswith("data.pairs: ")
    assert said in line


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.pairs: .*gone\.tsv"):
        open_pairs(DataSpec(pairs=str(tmp_path / "gone.tsv")))
