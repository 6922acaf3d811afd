"""Rows of Parquet and Arrow files are documents, as records of a JSONL file are."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from archwright.spec.data import DataSpec
from archwright.spec.errors import UserError
from archwright.text.corpus import open_corpus, open_texts

TEXTS = [f"text {i}, žluťoučký kůň 🐎\n" * (1 + i % 7) for i in range(3000)]
TEXTS[5] = ""
Write = Callable[..., Path]


def table(texts: list[str | None], field: str = "text", kind: str = "string") -> Any:
    column = pyarrow.array(texts, getattr(pyarrow, kind)())
    return pyarrow.table({"number": [*range(len(texts))], field: column})


def write_parquet(path: Path, texts: list[str | None], **options: str) -> Path:
    parquet.write_table(table(texts, **options), path, row_group_size=700)
    return path


def write_arrow(path: Path, texts: list[str | None], **options: str) -> Path:
    found = table(texts, **options)
    with pyarrow.ipc.new_stream(path, found.schema) as writer:
        writer.write_table(found, max_chunksize=700)
    return path


def write_feather(path: Path, texts: list[str | None], **options: str) -> Path:
    found = table(texts, **options)
    with pyarrow.ipc.new_file(path, found.schema) as writer:
        writer.write_table(found, max_chunksize=700)
    return path


def sides(path: Path | str, **options: str) -> list[list[str]]:
    found = open_corpus(DataSpec.model_validate({"text": str(path), **options}))
    return [["".join(d.pieces) for d in side] for side in (found.train, found.held_out)]


def message(path: Path | str, **options: str) -> str:
    with pytest.raises(UserError) as caught:
        sides(path, **options)
    (line,) = caught.value.lines
    assert "\n" not in line
    return line


@pytest.mark.parametrize("kind", ["string", "large_string"])
@pytest.mark.parametrize(
    ("name", "write"),
    [("a.parquet", write_parquet), ("a.arrow", write_arrow), ("b.arrow", write_feather)],
)
def test_rows_are_split_as_the_records_of_jsonl_are(
    tmp_path: Path, name: str, write: Write, kind: str
) -> None:
    lines = [json.dumps({"body": text}) for text in TEXTS]
    path = write(tmp_path / name, [*TEXTS, None], field="body", kind=kind)
    train, held_out = sides(path, field="body")
    assert sorted(train + held_out) == sorted(filter(None, TEXTS))
    (tmp_path / "r.jsonl").write_text("\n".join(lines), "utf-8")
    whole = open_texts((str(tmp_path / "r.jsonl"),), DataSpec(field="body"))
    again = open_texts((str(path),), DataSpec(field="body"))
    assert ["".join(d.pieces) for d in again] == ["".join(d.pieces) for d in whole]
    assert [d.name.partition(":")[2] for d in again] == [d.name.partition(":")[2] for d in whole]
    assert again.size == sum(len(text.encode()) for text in TEXTS)


def test_files_of_a_folder_are_read_beside_text(tmp_path: Path) -> None:
    write_parquet(tmp_path / "b.parquet", ["second", "third"])
    (tmp_path / "a.txt").write_text("first", "utf-8")
    found = open_texts((str(tmp_path),), DataSpec())
    assert [(d.name, "".join(d.pieces)) for d in found] == [
        ("a.txt", "first"),
        ("b.parquet:0", "second"),
        ("b.parquet:1", "third"),
    ]


def test_the_tail_of_few_rows_is_held_out(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["one", "two"])
    assert sides(path) == [["one"], ["two"]]


def test_other_content_has_another_fingerprint(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["one", "two", "three"])
    before = open_texts((str(path),), DataSpec()).fingerprint
    write_parquet(path, ["one", "two", "thre3"])
    assert open_texts((str(path),), DataSpec()).fingerprint != before


@pytest.mark.parametrize("write", [write_parquet, write_arrow])
def test_a_wrong_column_is_told(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / f"a.{'parquet' if write is write_parquet else 'arrow'}", ["one"])
    assert message(path, field="txt").endswith(
        "a."
        + path.suffix[1:]
        + '": no column "txt" (found "number", "text"). Set data.field. Did you mean "text"?'
    )
    assert message(path, field="number").endswith('column "number" is int64, not a string.')


def test_rows_without_text_are_no_text(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [None, ""])
    assert message(path) == "data.text: there is no text; every file is empty."


@pytest.mark.parametrize(
    ("name", "write"),
    [("a.parquet", write_parquet), ("a.arrow", write_arrow), ("b.arrow", write_feather)],
)
@pytest.mark.parametrize("cut", [0, 1, 100, 0.5, 0.9])
def test_a_file_that_was_cut_off_is_told_or_has_the_rows_before_that(
    tmp_path: Path, name: str, write: Write, cut: float
) -> None:
    path = write(tmp_path / name, [*TEXTS])
    whole = path.read_bytes()
    path.write_bytes(whole[: cut if isinstance(cut, int) else int(cut * len(whole))])
    assert "cannot be read as a table" in message(path)


def test_offsets_beyond_the_text_are_told(tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "a.arrow", ["abc", "defg"])
    offsets = b"".join(n.to_bytes(4, "little") for n in (0, 3, 7))
    content = path.read_bytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, offsets[:8] + b"\xff\xff\xff\x0f"))
    assert "cannot be read as a table" in message(path)


def test_bytes_that_are_no_utf8_are_told(tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "a.arrow", ["abcdefgh", "x"])
    path.write_bytes(path.read_bytes().replace(b"abcdefgh", b"abcd\xfffgh"))
    assert "cannot be read as a table" in message(path)


def test_without_pyarrow_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["one", "two"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert message(path).endswith("not installed: pip install 'archwright[parquet]'")


@pytest.mark.parametrize("write", [write_arrow, write_feather])
def test_a_column_whose_name_is_no_text_is_refused(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / "a.arrow", ["one", "two"], field="column")
    path.write_bytes(path.read_bytes().replace(b"column", b"col\xadmn"))
    assert message(path).startswith(f'data.text: "{path}" cannot be read as a table: ')


class TestDatasets:
    """Folders and names of Hugging Face's datasets."""

    @pytest.fixture(autouse=True)
    def _quiet(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        datasets.disable_progress_bars()
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def test_a_folder_that_was_saved_is_its_rows_alone(self, tmp_path: Path) -> None:
        made = datasets.Dataset.from_dict({"text": TEXTS})
        made.save_to_disk(tmp_path / "saved", num_shards=3)
        found = open_texts((str(tmp_path / "saved"),), DataSpec())
        assert ["".join(d.pieces) for d in found] == [text for text in TEXTS if text]

    def test_rows_that_were_shuffled_are_saved_so(self, tmp_path: Path) -> None:
        made = datasets.Dataset.from_dict({"text": TEXTS}).shuffle(seed=1).select(range(9))
        made.save_to_disk(tmp_path / "saved")
        found = open_texts((str(tmp_path / "saved"),), DataSpec())
        assert ["".join(d.pieces) for d in found] == made["text"][:]

    @pytest.mark.parametrize("content", ["", "[]", "[" * 20_000, '{"_data_files": [1]}'])
    def test_one_that_does_not_say_its_files_is_refused(self, tmp_path: Path, content: str) -> None:
        """Read as any folder, it would have the rows in another order, and its JSON as text."""
        saved = tmp_path / "saved"
        datasets.Dataset.from_dict({"text": TEXTS[:9]}).save_to_disk(saved)
        (saved / "state.json").write_text(content)
        assert message(saved) == (
            f'data.text: "{saved}/state.json" is damaged: it does not list the files of the rows. '
            "Save the dataset again."
        )
        (saved / "dataset_info.json").unlink()
        (saved / "state.json").write_text("of something else")
        assert "of something else" in sides(saved)[1] + sides(saved)[0]

    def test_one_of_several_splits_is_named(self, tmp_path: Path) -> None:
        one = datasets.Dataset.from_dict({"text": ["one", "two"]})
        datasets.DatasetDict(train=one, test=one).save_to_disk(tmp_path / "all")
        assert message(tmp_path / "all") == (
            f'data.text: "{tmp_path}/all" is a dataset of several splits; name one: '
            f'"{tmp_path}/all/test" or "{tmp_path}/all/train".'
        )
        assert sides(tmp_path / "all" / "train") == [["one"], ["two"]]

    def test_a_name_is_loaded_by_the_library(self, tmp_path: Path) -> None:
        folder = tmp_path / "mine"
        folder.mkdir()
        (folder / "train.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n', "utf-8")
        (folder / "test.jsonl").write_text('{"text": "three"}\n{"text": "four"}\n', "utf-8")
        assert sides(f"datasets:{folder}") == [["one"], ["two"]]
        assert sides(f"datasets:{folder}@test") == [["three"], ["four"]]
        assert 'cannot be loaded: ValueError: Unknown split "tset"' in message(
            f"datasets:{folder}@tset"
        )
        assert "cannot be loaded: " in message(f"datasets:{tmp_path}/nowhere")

    def test_without_the_library_it_is_said_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "datasets", None)
        assert message("datasets:x").endswith("pip install 'archwright[datasets]'")
