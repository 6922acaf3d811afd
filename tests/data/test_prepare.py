"""A token store holds the text of all documents, appears at one go, and is made once."""

import errno
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archwright.data import prepare as module
from archwright.data.prepare import prepare, prepare_documents
from archwright.data.store import TokenStore
from archwright.data.writer import Writer, dtype_for
from archwright.spec.data import DataSpec
from archwright.spec.errors import UserError
from archwright.text.bpe import raw_bytes
from archwright.text.bpe_training import train_bpe
from archwright.text.corpus import Documents, open_corpus, open_texts
from archwright.text.selfcheck import PROBE
from archwright.text.tokenizer import Tokenizer

END = "<|endoftext|>"
TEXTS = [f"document {i}: ünï 中文\n" + PROBE[i : 3 * i] for i in range(1, 80)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(train_bpe([PROBE], 500, [END]), END)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i, text in enumerate(TEXTS):
        path = tmp_path / "texts" / f"{i:03}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode())
    return tmp_path / "texts"


@pytest.fixture
def documents(folder: Path) -> Documents:
    return open_texts((str(folder),), DataSpec())


def left_behind(cache: Path) -> list[str]:
    """Everything in the cache but stores and locks."""
    return [p.name for p in cache.rglob("*") if ".tmp" in str(p)]


def check(store: TokenStore, texts: list[str], tokenizer: Tokenizer) -> None:
    assert store.num_documents == len(texts)
    assert store.num_bytes == sum(len(text.encode()) for text in texts)
    assert [int(b) for b in store.document_bytes] == [len(text.encode()) for text in texts]
    for i, text in enumerate(texts):
        first, *ids = store.document(i).tolist()
        assert first == tokenizer.end_of_text
        assert ids == tokenizer._inner.encode(text, add_special_tokens=False).ids
    everything = [t for i in range(len(texts)) for t in store.document(i).tolist()]
    assert store[:].tolist() == everything


def test_documents_stand_in_order_each_after_end_of_text(
    documents: Documents, tokenizer: Tokenizer
) -> None:
    check(prepare_documents(documents, tokenizer), TEXTS, tokenizer)


@pytest.mark.parametrize("shard", [1, 7, 1000])
def test_any_size_of_shards_holds_the_same(
    documents: Documents, tokenizer: Tokenizer, shard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.os, "fsync", lambda handle: None)
    if shard == 1:
        documents = open_texts((str(documents.files[0].file.path),), DataSpec())
    store = prepare_documents(documents, tokenizer, shard=shard)
    assert {s.num_tokens for s in store.index.shards[:-1]} <= {shard}
    check(store, TEXTS[: len(documents.files)], tokenizer)


@pytest.mark.parametrize("batch", [1, 100])
def test_any_size_of_batches_holds_the_same(
    documents: Documents, tokenizer: Tokenizer, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", batch)
    monkeypatch.setattr("archwright.text.chunking.TARGET", 20)
    check(prepare_documents(documents, tokenizer), TEXTS, tokenizer)


@pytest.mark.slow
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(texts=st.lists(st.text(alphabet="ab \n.é1'", max_size=40), min_size=1, max_size=8))
def test_separated_documents_keep_their_text(tmp_path: Path, texts: list[str]) -> None:
    path = tmp_path / "a.txt"
    raw = Tokenizer(raw_bytes([END]), END)
    if not any(texts):
        return
    data = DataSpec(separator="|")
    path.write_bytes("|".join(texts).encode())
    store = prepare_documents(open_texts((str(path),), data), raw)
    found = [raw.decode(store.document(i)) for i in range(store.num_documents)]
    assert found == [text for text in texts if text]


def test_a_store_is_used_again_until_text_or_tokenizer_changes(
    folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataSpec(text=(str(folder),))
    first = prepare(open_corpus(data), tokenizer)

    def never(*args: object) -> None:
        raise AssertionError("made again")

    monkeypatch.setattr(module, "_encoded", never)
    again = prepare(open_corpus(data), tokenizer)
    assert again.train.folder == first.train.folder
    assert again.held_out[:].tolist() == first.held_out[:].tolist()
    with pytest.raises(AssertionError, match="made again"):
        prepare(open_corpus(data), Tokenizer(raw_bytes([END]), END))
    (folder / "000.txt").write_text("changed")
    with pytest.raises(AssertionError, match="made again"):
        prepare(open_corpus(data), tokenizer)


def test_small_vocabularies_take_two_bytes_and_large_ones_four() -> None:
    assert dtype_for(65_536) == np.uint16
    assert dtype_for(65_537) == np.uint32


def test_a_damaged_store_is_made_again(documents: Documents, tokenizer: Tokenizer) -> None:
    store = prepare_documents(documents, tokenizer)
    path = store.folder / store.index.shards[0].file
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(UserError, match="is damaged"):
        TokenStore(store.folder)
    with pytest.warns(UserWarning, match="the cached tokens of data.text were damaged"):
        again = prepare_documents(documents, tokenizer)
    check(again, TEXTS, tokenizer)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, "No space left on device"),
        (errno.EROFS, "Read-only file system"),
        (
            errno.EACCES,
            "Permission denied. Set ARCHWRIGHT_CACHE to a folder that you may write to.",
        ),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_disk_that_refuses_gives_one_line_and_leaves_nothing(
    documents: Documents,
    tokenizer: Tokenizer,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    expected: str,
) -> None:
    def refuse(self: Writer, tokens: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Writer, "_write", refuse)
    with pytest.raises(UserError) as caught:
        prepare_documents(documents, tokenizer)
    assert expected in str(caught.value)
    assert str(cache) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert left_behind(cache) == []
    monkeypatch.undo()
    os.environ["ARCHWRIGHT_CACHE"] = str(cache)
    check(prepare_documents(documents, tokenizer), TEXTS, tokenizer)


def test_an_unfinished_store_of_a_killed_process_is_removed(
    documents: Documents, tokenizer: Tokenizer, cache: Path
) -> None:
    name = prepare_documents(documents, tokenizer).folder
    left = name.parent / f".tmp-{name.name}-abc"
    name.rename(left)
    (left / "index.json").unlink()
    check(prepare_documents(documents, tokenizer), TEXTS, tokenizer)
    assert left_behind(cache) == []


def test_text_that_changes_meanwhile_leaves_nothing(
    documents: Documents, folder: Path, tokenizer: Tokenizer, cache: Path
) -> None:
    (folder / "005.txt").write_text("short")
    with pytest.raises(UserError, match="changed while it was read"):
        prepare_documents(documents, tokenizer)
    assert left_behind(cache) == []


def _prepare(folder: str, cache: str, counter: str) -> None:
    os.environ["ARCHWRIGHT_CACHE"] = cache
    write = module._write

    def counted(*args: object) -> None:
        with Path(counter).open("a") as file:
            file.write("made\n")
        write(*args)  # type: ignore[arg-type]

    module._write = counted  # type: ignore[assignment]
    documents = open_texts((folder,), DataSpec())
    store = prepare_documents(documents, Tokenizer(raw_bytes([END]), END))
    assert store.num_documents == len(TEXTS)


def test_two_processes_make_a_store_once(folder: Path, cache: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork" if os.name == "posix" else "spawn")
    counter = tmp_path / "counter"
    arguments = (str(folder), str(cache), str(counter))
    processes = [context.Process(target=_prepare, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert counter.read_text() == "made\n"
    assert left_behind(cache) == []
