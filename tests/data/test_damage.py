"""Whatever happens to a file of the cache, the same tokens come out, and one line says what was done."""

import errno
import json
import multiprocessing
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from archwright.data import store as module
from archwright.data.prepare import Prepared, prepare
from archwright.data.store import StoreError, TokenStore
from archwright.spec.data import DataSpec, TokenizerSpec
from archwright.spec.errors import UserError
from archwright.text.bpe import raw_bytes
from archwright.text.cache import cache_folder
from archwright.text.corpus import Corpus, open_corpus
from archwright.text.open_tokenizer import open_tokenizer
from archwright.text.tokenizer import Tokenizer
from tests.cli.test_mistakes_with_runs import disk, read_only

END = "<|endoftext|>"


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    for i in range(40):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{i}.txt").write_text(f"the text number {i}, of some words\n" * i)
    return open_corpus(DataSpec(text=(str(tmp_path / "texts"),)))


def opened(corpus: Corpus) -> tuple[Tokenizer, Prepared]:
    tokenizer = open_tokenizer(TokenizerSpec(vocab_size=300), corpus.train)
    return tokenizer, prepare(corpus, tokenizer)


def content(found: tuple[Tokenizer, Prepared]) -> list[Any]:
    tokenizer, stores = found
    values: list[Any] = [tokenizer.fingerprint]
    for store in stores:
        values += [store[:].tolist(), store.offsets.tolist(), store.document_bytes.tolist()]
        values += [store.num_bytes, store.end_of_text]
    return values


def empty(path: Path) -> None:
    path.write_bytes(b"")


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garbage(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("x")


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    path.write_bytes(data)


DAMAGES = [empty, half, garbage, folder, flipped]


def files(cache: Path) -> Iterator[Path]:
    for path in sorted(cache.rglob("*")):
        if path.is_file() and not path.match(module.VERIFIED):
            yield path


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damage_to_any_file_heals(
    corpus: Corpus, cache: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    whole = content(opened(corpus))
    shutil.copytree(cache, tmp_path / "kept")
    places = [path.relative_to(cache) for path in files(cache)]
    assert len(places) == 9
    for place in places:
        shutil.rmtree(cache)
        shutil.copytree(tmp_path / "kept", cache)
        damage(cache / place)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always", UserWarning)
            assert content(opened(corpus)) == whole, place
        # Garbage of other tests may be collected here, and warn of files that they left open.
        (line,) = [str(w.message) for w in seen if w.category is UserWarning]
        what = "tokens" if place.parts[0] == "tokens" else "tokenizer"
        assert line.startswith(f"the cached {what} of data.text were damaged (") or (
            line.startswith(f"the cached {what} of data.text was damaged (")
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            assert content(opened(corpus)) == whole


@pytest.mark.sampled(fast=3)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dtype", "uint32"), ("dtype", "object"), ("dtype", 3), ("num_tokens", {}), ("num_tokens", 1),
        ("num_tokens", -1), ("num_documents", 2), ("num_documents", 10**30), ("num_bytes", 7),
        ("num_bytes", True), ("end_of_text", 5), ("text", "x"), ("tokenizer", None), ("shards", []),
        ("shards", [{"file": ["x"], "num_tokens": 1, "digest": ""}]),
        ("shards", [{"file": "../shard-00000.bin", "num_tokens": 1, "digest": "0" * 32}]),
        ("shards", [{"file": "/etc/passwd", "num_tokens": 1, "digest": "0" * 32}]),
        ("arrays", {}), ("format", 2), ("extra", 1),
    ],
)  # fmt: skip
def test_a_changed_value_of_the_index_is_seen(
    corpus: Corpus, cache: Path, key: str, value: object
) -> None:
    whole = content(opened(corpus))
    for path in cache.glob("tokens/*/index.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.warns(UserWarning, match="tokenized again"):
        assert content(opened(corpus)) == whole


def test_other_tokens_of_the_same_size_are_seen(corpus: Corpus, cache: Path) -> None:
    whole = content(opened(corpus))
    for path in cache.glob("tokens/*/shard-*.bin"):
        path.write_bytes(bytes([97, 0]) * (path.stat().st_size // 2))
    with pytest.warns(UserWarning, match=r'"shard-00000.bin" is damaged: its hash differs'):
        assert content(opened(corpus)) == whole


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3),
        np.zeros((3, 3), np.int64),
        np.zeros(3, np.int64),
        np.array(["x"], object),
        np.zeros(3, ">i8"),
    ],
    ids=lambda a: str(a.dtype),
)
def test_an_array_of_another_kind_is_seen(corpus: Corpus, array: np.ndarray[Any, Any]) -> None:
    store = opened(corpus)[1].train
    for name in ("offsets.npy", "bytes.npy"):
        kept = (store.folder / name).read_bytes()
        np.save(store.folder / name, array)
        with pytest.raises(StoreError, match=f'"{name}" is damaged'):
            TokenStore(store.folder)
        (store.folder / name).write_bytes(kept)


Hashed = list[str]


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Hashed:
    """Names of the files that are hashed from now on."""
    seen: Hashed = []
    digest = module._digest

    def counted(path: Path, *rest: Any) -> str:
        seen.append(path.name)
        return digest(path, *rest)

    monkeypatch.setattr(module, "_digest", counted)
    return seen


def kept(folder: Path) -> Path:
    """Return the one file that says what was verified."""
    (found,) = folder.glob(module.VERIFIED)
    return found


def test_shards_are_hashed_once(corpus: Corpus, hashed: Hashed) -> None:
    store = opened(corpus)[1].train
    hashed.clear()
    TokenStore(store.folder)
    assert hashed == []
    (store.folder / "shard-00000.bin").touch()
    TokenStore(store.folder)
    assert hashed == ALL
    verified = kept(store.folder)
    state = json.loads(verified.read_text())
    verified.write_text(json.dumps(state | {"boot": "another start"}))
    TokenStore(store.folder)
    assert len(hashed) == 6
    for damaged in ("[[", "[]", ""):
        verified.write_text(damaged)
        hashed.clear()
        TokenStore(store.folder)
        assert hashed == ALL
    assert kept(store.folder) == verified


ALL = ["offsets.npy", "bytes.npy", "shard-00000.bin"]


Machine = Callable[[str, str], None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Let this process be one of a machine with a name, since it was started."""

    def become(host: str, boot: str) -> None:
        monkeypatch.setattr("archwright.files._boot", lambda: boot)
        monkeypatch.setattr("socket.gethostname", lambda: host)

    return become


def test_each_machine_that_shares_a_store_verifies_it_once(
    corpus: Corpus, hashed: Hashed, machine: Machine
) -> None:
    machine("a", "boot-1")
    folder = opened(corpus)[1].train.folder
    for host, boot in (("b", "boot-2"), ("c", "boot-3")):
        machine(host, boot)
        hashed.clear()
        TokenStore(folder)
        assert hashed == ALL
    hashed.clear()
    for host, boot in (("a", "boot-1"), ("b", "boot-2"), ("c", "boot-3"), ("pod", "boot-1")):
        machine(host, boot)
        TokenStore(folder)
    assert hashed == []
    assert len(list(folder.glob(module.VERIFIED))) == 3


def test_what_was_remembered_before_a_machine_was_started_again_is_removed(
    corpus: Corpus, hashed: Hashed, machine: Machine
) -> None:
    machine("a", "boot-1")
    folder = opened(corpus)[1].train.folder
    machine("b", "boot-2")
    TokenStore(folder)
    machine("a", "boot-3")
    hashed.clear()
    TokenStore(folder)
    assert hashed == ALL
    found = [json.loads(path.read_text()) for path in folder.glob(module.VERIFIED)]
    assert sorted((state["host"], state["boot"]) for state in found) == [
        ("a", "boot-3"),
        ("b", "boot-2"),
    ]
    hashed.clear()
    machine("b", "boot-2")
    TokenStore(folder)
    assert hashed == []


def _open(folder: str, log: str) -> None:
    """Open a store; a file that is hashed is written to a log, and takes its time."""
    digest = module._digest

    def slowly(path: Path, *rest: Any) -> str:
        with Path(log).open("a") as file:
            file.write(f"{path.name}\n")
        time.sleep(0.3)
        return digest(path, *rest)

    module._digest = slowly
    TokenStore(Path(folder))


def test_of_processes_that_start_at_once_one_verifies(corpus: Corpus, tmp_path: Path) -> None:
    folder = opened(corpus)[1].train.folder
    kept(folder).unlink()
    before = sorted(folder.iterdir())
    context = multiprocessing.get_context("fork" if os.name == "posix" else "spawn")
    log = tmp_path / "log"
    processes = [context.Process(target=_open, args=(str(folder), str(log))) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert log.read_text().split() == ALL
    kept(folder).unlink()
    assert sorted(folder.iterdir()) == before  # no lock, and nothing half written


def test_processes_that_wait_find_a_damaged_store_damaged(corpus: Corpus) -> None:
    """Nothing is remembered of a check that failed, and its lock is let go."""
    folder = opened(corpus)[1].train.folder
    flipped(folder / "shard-00000.bin")
    for _ in range(2):
        with pytest.raises(StoreError, match="its hash differs"):
            TokenStore(folder)
    assert not list(folder.glob(".*"))


def test_a_store_in_a_folder_that_is_read_only_is_verified_each_time(
    corpus: Corpus, hashed: Hashed, tmp_path: Path
) -> None:
    store = opened(corpus)[1].train
    with disk(tmp_path, 1000) as place:
        folder = place / "store"
        shutil.copytree(store.folder, folder, ignore=shutil.ignore_patterns(module.VERIFIED))
        read_only(place)
        for _ in range(2):
            hashed.clear()
            assert np.array_equal(TokenStore(folder)[:], store[:])
            assert hashed == ALL


def test_a_state_that_cannot_be_written_is_done_without(
    corpus: Corpus, hashed: Hashed, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(corpus)[1].train
    kept(store.folder).unlink()

    def refused(*_: object, **__: object) -> None:
        raise UserError("cannot be written")

    monkeypatch.setattr(module, "only_one", refused)
    monkeypatch.setattr("archwright.files.atomic_write", refused)
    for _ in range(2):
        hashed.clear()
        TokenStore(store.folder)
        assert hashed == ALL


def test_a_link_in_place_of_the_remembered_check_is_replaced(
    corpus: Corpus, tmp_path: Path
) -> None:
    verified = kept(opened(corpus)[1].train.folder)
    before = verified.read_text()
    (tmp_path / "mine.txt").write_text("mine")
    verified.unlink()
    verified.symlink_to(tmp_path / "mine.txt")
    opened(corpus)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert not verified.is_symlink()
    assert verified.read_text() == before


def test_a_file_in_place_of_a_store_is_replaced(corpus: Corpus) -> None:
    whole = content(opened(corpus))
    place = opened(corpus)[1].train.folder
    shutil.rmtree(place)
    place.write_text("x")
    with pytest.warns(UserWarning, match="tokenized again"):
        assert content(opened(corpus)) == whole


def test_a_lock_that_is_a_folder_is_no_obstacle(corpus: Corpus, cache: Path) -> None:
    whole = content(opened(corpus))
    for path in [*cache.glob("tokens/*"), *cache.glob("tokenizers/*.json")]:
        (path.parent / f".{path.name}.lock").mkdir()
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert content(opened(corpus)) == whole


def test_a_tokenizer_that_only_looks_whole_is_trained_again(corpus: Corpus, cache: Path) -> None:
    whole = content(opened(corpus))
    (path,) = cache_folder("tokenizers").glob("*.json")
    path.write_text(raw_bytes([END]).to_str())
    with pytest.warns(UserWarning, match="the cached tokenizer of data.text was damaged"):
        assert content(opened(corpus)) == whole
    kept = json.loads(path.read_text())
    values = json.loads(kept["tokenizer"])
    merges = values["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]
    path.write_text(json.dumps(kept | {"tokenizer": json.dumps(values)}))
    with pytest.warns(UserWarning, match="the cached tokenizer of data.text was damaged"):
        assert content(opened(corpus)) == whole


@pytest.mark.parametrize("change", [flipped, half])
def test_a_shard_that_changes_while_it_is_mapped_is_not_read(
    change: Callable[[Path], None], corpus: Corpus
) -> None:
    """Where it was cut, reading the map would end the process."""
    store, removed = opened(corpus)[1]
    shard = store.folder / "shard-00000.bin"
    shutil.rmtree(removed.folder)
    assert len(removed.read(0, 9)) == 9, "what was removed stays mapped"
    time.sleep(0.02)  # more than a file system's clock ticks
    change(shard)
    with pytest.raises(StoreError, match=r"shard-00000\.bin\" was changed while it was read"):
        store.read(len(store) - 9, len(store))


def test_a_store_is_not_made_again_where_files_are_too_many(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = opened(corpus)[1].train.folder / "shard-00000.bin"
    before = shard.stat().st_ino
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(shard))
    with monkeypatch.context() as patch:
        patch.setattr(np, "memmap", Mock(side_effect=error))
        with pytest.raises(OSError, match="Too many open files"):
            opened(corpus)
    assert shard.stat().st_ino == before
