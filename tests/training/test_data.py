"""A run goes on with the text and the tokenizer that it began with, or says which one is another."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec
from archwright.text.bpe import raw_bytes
from archwright.text.corpus import _documents, open_corpus
from archwright.text.tokenizer import Tokenizer
from archwright.training.data import Material, prepare_data, reload_data


@pytest.fixture
def folder(run: RunSpec, tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "run")
    found.path.mkdir()
    record(found, prepare_data(run, found).record())
    return found


def record(folder: RunFolder, data: Any) -> None:
    folder.environment_file.write_text(json.dumps({"data": data}))


def same(one: Material, other: Material) -> bool:
    return one.record() == other.record() and one.train[:].tolist() == other.train[:].tolist()


def test_material_is_regained(run: RunSpec, folder: RunFolder, cache: Path) -> None:
    first = reload_data(run, folder)
    shutil.rmtree(cache)
    assert same(reload_data(run, folder), first)
    for path in cache.glob("tokens/*/shard-*.bin"):
        path.write_bytes(bytes(path.stat().st_size))
    with pytest.warns(UserWarning, match="the cached tokens of data.text were damaged"):
        assert same(reload_data(run, folder), first)


def test_another_tokenizer_is_refused(run: RunSpec, folder: RunFolder) -> None:
    Tokenizer(raw_bytes(["<|other|>"]), "<|other|>").save(folder.tokenizer_folder)
    with pytest.raises(UserError) as caught:
        reload_data(run, folder)
    assert str(caught.value) == (
        f"{folder.path}: the tokenizer has changed since this run began; bring the old tokenizer "
        "back, or train again with another --out"
    )


@pytest.mark.parametrize("key", ["num_tokens", "num_documents", "num_bytes", "digest"])
def test_other_tokens_are_refused(run: RunSpec, folder: RunFolder, key: str) -> None:
    data = folder.environment()["data"]
    data["held_out"][key] = 7
    record(folder, data)
    with pytest.raises(UserError, match="the row of tokens has changed since this run began"):
        reload_data(run, folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: None,
        lambda data: [],
        lambda data: data | {"tokenizer": 3},
        lambda data: data | {"train": "x"},
        lambda data: data | {"held_out": {}},
        lambda data: data | {"files_skipped": None},
    ],
)
def test_a_record_of_another_shape_is_told(
    run: RunSpec, folder: RunFolder, change: Callable[[Any], Any]
) -> None:
    record(folder, change(folder.environment()["data"]))
    left_out = pytest.warns(UserWarning, match=r"environment\.json: left out as damaged: data")
    with (
        left_out,
        pytest.raises(UserError, match=r"environment\.json: found no record of the text"),
    ):
        reload_data(run, folder)
    folder.environment_file.write_text("{}")
    with pytest.raises(UserError, match=r"environment\.json: found no record of the text"):
        reload_data(run, folder)


def test_a_store_at_an_impossible_place_is_made_again(run: RunSpec, folder: RunFolder) -> None:
    first = reload_data(run, folder)
    data = folder.environment()["data"]
    data["train"]["store"] = "a\0b"
    record(folder, data)
    assert same(reload_data(run, folder), first)


def test_a_run_from_before_duplicates_stayed_together_is_refused(
    run: RunSpec, tmp_path: Path, cache: Path
) -> None:
    lines = "|".join(f"line {i % 40} of a text that repeats" for i in range(200))
    (tmp_path / "text.txt").write_text(lines)
    run = run.override("data.separator=|")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    data = prepare_data(run, folder).record()
    held_out = open_corpus(run.data).held_out
    surveyed = tuple(replace(file, moved=frozenset()) for file in held_out.files)
    by_name = _documents(surveyed, run.data, held_out.choose, 0, "sha256/held_out")
    data["held_out"]["text"] = by_name.fingerprint
    record(folder, data)
    shutil.rmtree(cache)
    with pytest.raises(UserError) as caught:
        reload_data(run, folder)
    assert str(caught.value) == (
        f"{folder.path}: the text or its split has changed since this run began; bring the old text or its split back, "
        "or train again with another --out"
    )
