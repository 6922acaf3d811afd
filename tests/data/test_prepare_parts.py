"""A store of several parts is the same whoever makes them, and wherever one of them dies."""

import errno
import hashlib
import json
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archwright.data import prepare as module
from archwright.data.prepare import SHARD, Prepared, prepare, prepare_documents
from archwright.data.store import FORMAT, VERIFIED, TokenStore
from archwright.data.writer import Writer
from archwright.spec.data import DataSpec
from archwright.spec.errors import UserError
from archwright.text.bpe import raw_bytes
from archwright.text.cache import only_one
from archwright.text.corpus import Documents, open_corpus, open_texts
from archwright.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer(raw_bytes(["<e>"]), "<e>")
FILES = [f"file {i}: ünï 中文\n" * (3 + 7 * i % 11) for i in range(12)]
PART = 300
Contents = dict[str, bytes]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", PART)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "texts"
    place.mkdir()
    for i, text in enumerate(FILES):
        (place / f"{i:02}.txt").write_text(text, "utf-8")
    return place


@pytest.fixture
def documents(folder: Path) -> Documents:
    return open_texts((str(folder),), DataSpec())


def contents(store: TokenStore) -> Contents:
    """All files of a store but what machines remember of it."""
    return {
        path.name: path.read_bytes()
        for path in sorted(store.folder.iterdir())
        if not path.match(VERIFIED)
    }


def whole(documents: Documents, place: Path) -> TokenStore:
    """The store of the same documents in one part."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PART", SHARD)
        return prepare_documents(documents, TOKENIZER, place)


def same_tokens(one: TokenStore, other: TokenStore) -> bool:
    return (
        np.array_equal(one[:], other[:])
        and np.array_equal(one.offsets, other.offsets)
        and np.array_equal(one.document_bytes, other.document_bytes)
        and one.num_bytes == other.num_bytes
    )


def names(cache: Path) -> set[str]:
    return {path.name for path in (cache / "tokens").iterdir()}


def fork(target: Callable[..., None], *arguments: object) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process  # type: ignore[return-value]


forks = pytest.mark.skipif(os.name == "nt", reason="needs fork")


def test_parts_are_runs_of_whole_files(documents: Documents) -> None:
    parts = documents.parts(PART)
    assert [file for part in parts for file in part.files] == [*documents.files]
    sizes = [sum(file.size for file in part.files) for part in parts]
    assert len(parts) > 3
    assert min(sizes[:-1]) >= PART
    assert all(sum(f.size for f in part.files[:-1]) < PART for part in parts)
    assert len({part.fingerprint for part in (*parts, documents)}) == len(parts) + 1
    assert documents.parts(sum(sizes)) == (documents,)


def test_the_store_is_that_of_one_part(documents: Documents, cache: Path, tmp_path: Path) -> None:
    store = prepare_documents(documents, TOKENIZER)
    assert len(store.index.shards) == len(documents.parts(PART))
    assert names(cache) == {store.folder.name}
    assert same_tokens(store, whole(documents, tmp_path / "whole"))


def test_stores_of_one_part_keep_their_names(documents: Documents, tmp_path: Path) -> None:
    asked = [FORMAT, documents.fingerprint, TOKENIZER.fingerprint, SHARD]
    name = hashlib.blake2b(json.dumps(asked).encode(), digest_size=16).hexdigest()
    assert whole(documents, tmp_path / "whole").folder.name == name


@pytest.mark.parametrize("held_out", [(), ("held.txt",)])
def test_both_sides_of_a_split(
    folder: Path, cache: Path, tmp_path: Path, held_out: tuple[str, ...]
) -> None:
    (tmp_path / "held.txt").write_text("held out")
    paths = tuple(str(tmp_path / name) for name in held_out)
    corpus = open_corpus(DataSpec(text=(str(folder),), held_out=paths))
    sides = prepare(corpus, TOKENIZER)
    assert names(cache) == {side.folder.name for side in sides}
    for side, documents in zip(sides, (corpus.train, corpus.held_out), strict=True):
        assert same_tokens(side, whole(documents, tmp_path / "whole"))


def test_a_held_out_tail_is_in_the_last_parts_alone(tmp_path: Path, cache: Path) -> None:
    for i in range(3):  # no name of these hashes to the held-out side
        (tmp_path / f"{'abd'[i]}.txt").write_text(f"line {i}\n" * 100)
    corpus = open_corpus(DataSpec(text=(str(tmp_path / "*.txt"),)))
    assert len(corpus.held_out.files) == 3
    sides = prepare(corpus, TOKENIZER)
    assert sides.held_out.num_documents == 1
    assert same_tokens(sides.held_out, whole(corpus.held_out, tmp_path / "whole"))


@pytest.mark.slow
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    texts=st.lists(st.text(alphabet="ab |\n.é", max_size=60), min_size=2, max_size=9),
    part=st.integers(1, 200),
    shard=st.integers(5, 100),
    separator=st.sampled_from(["", "|"]),
)
def test_any_files_and_parts(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    texts: list[str],
    part: int,
    shard: int,
    separator: str,
) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr(module, "PART", part)
    place = tmp_path_factory.mktemp("any")
    for i, text in enumerate(texts):
        (place / f"{i}.txt").write_bytes(text.encode())
    try:
        corpus = open_corpus(DataSpec(text=(str(place),), separator=separator))
    except UserError:  # too short for two sides
        return
    for documents in (corpus.train, corpus.held_out):
        store = prepare_documents(documents, TOKENIZER, place / "stores", shard)
        assert same_tokens(store, whole(documents, place / "whole"))
        raw = [TOKENIZER.decode(store.document(i)) for i in range(store.num_documents)]
        assert raw == ["".join(document.pieces) for document in documents]


# several processes --------------------------------------------------------------------------------


def _prepare(folder: str, cache: str, log: str, seconds: float = 0.0) -> None:
    """Prepare in a process of its own; each part that it makes is a line of the log."""
    os.environ["ARCHWRIGHT_CACHE"] = cache
    write = module._write

    def logged(target: module._Target, *rest: object) -> None:
        with Path(log).open("a") as file:
            file.write(f"{os.getpid()} {target.place.name}\n")
        time.sleep(seconds)
        write(target, *rest)  # type: ignore[arg-type]

    module._write = logged  # type: ignore[assignment]
    prepare(open_corpus(DataSpec(text=(folder,))), TOKENIZER)


def sides_in(folder: Path, cache: Path) -> Prepared:
    """Both stores, as they are in a cache."""

    def never(*_: object) -> None:
        raise AssertionError("made again")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHWRIGHT_CACHE", str(cache))
        patch.setattr(module, "_write", never)
        patch.setattr(module, "_join", never)
        return prepare(open_corpus(DataSpec(text=(str(folder),))), TOKENIZER)


@forks
def test_any_number_of_processes_makes_the_same_store(folder: Path, tmp_path: Path) -> None:
    found = []
    for number in (1, 3):
        cache, log = tmp_path / f"cache-{number}", tmp_path / f"log-{number}"
        processes = [
            fork(_prepare, str(folder), str(cache), str(log), 0.1 if number > 1 else 0.0)
            for _ in range(number)
        ]
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0] * number
        made = [line.split() for line in log.read_text().splitlines()]
        assert len({pid for pid, _ in made}) == number  # all took part,
        assert len({part for _, part in made}) == len(made)  # and no part was made twice
        sides = sides_in(folder, cache)
        assert names(cache) == {side.folder.name for side in sides}
        found.append([contents(side) for side in sides])
    assert found[0] == found[1]


def test_a_process_takes_parts_that_nobody_makes_and_waits_for_the_others(
    documents: Documents, cache: Path, tmp_path: Path
) -> None:
    parts = module._target(documents, TOKENIZER, None, SHARD, 1).parts
    thread = threading.Thread(target=prepare_documents, args=(documents, TOKENIZER))
    with only_one(parts[1].place):  # as another process has that makes it, and then dies
        thread.start()
        end = time.monotonic() + 30
        while not parts[-1].place.exists() and time.monotonic() < end:
            time.sleep(0.01)
        made = [part.place.exists() for part in parts]
        time.sleep(0.2)
        assert thread.is_alive()
    thread.join(30)
    assert made == [number != 1 for number in range(len(parts))]
    assert not thread.is_alive()
    store = prepare_documents(documents, TOKENIZER)
    assert same_tokens(store, whole(documents, tmp_path / "whole"))
    assert names(cache) == {store.folder.name}


def test_a_part_that_is_in_the_store_is_not_made_again(
    documents: Documents, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process joins them while this one waits for a part."""
    make_parts = module._make_parts

    def after_another(target: module._Target, *, wait: bool) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(module, "_make_parts", make_parts)
            prepare_documents(documents, TOKENIZER)
            patch.setattr(module, "_write", lambda *_: pytest.fail("made again"))
            make_parts(target, wait=wait)

    monkeypatch.setattr(module, "_make_parts", after_another)
    store = prepare_documents(documents, TOKENIZER)
    assert names(cache) == {store.folder.name}


# processes that die -------------------------------------------------------------------------------


def _die_at_call(number: int) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Return what lets a function end the process, as kill -9 does, in place of its call with a number."""
    calls = iter(range(number))

    def dying(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if next(calls, None) is None:
                os._exit(9)
            return function(*args, **kwargs)

        return call

    return dying


def _die(folder: str, cache: str, owner: str, name: str, number: int) -> None:
    place = {"module": module, "Writer": Writer, "os": os}[owner]
    setattr(place, name, _die_at_call(number)(getattr(place, name)))
    _prepare(folder, cache, f"{cache}-log")


DEATHS = [
    pytest.param("Writer", "add", 2, 2, id="in a part"),
    pytest.param("Writer", "finish", 3, 3, id="at the end of a part"),
    pytest.param("Writer", "take", 0, None, id="before the first part is joined"),
    pytest.param("Writer", "take", 2, None, id="in the midst of a join"),
    pytest.param("module", "_remove_parts", 0, None, id="joined, and all parts are there"),
    pytest.param("module", "remove", -1, None, id="joined, and half of the parts are there"),
]


@pytest.mark.release
@forks
@pytest.mark.parametrize(("owner", "name", "number", "num_made"), DEATHS)
def test_a_process_that_is_killed_leaves_what_others_use_or_clean(
    folder: Path, tmp_path: Path, owner: str, name: str, number: int, num_made: int | None
) -> None:
    reference = tmp_path / "reference"
    process = fork(_prepare, str(folder), str(reference), str(tmp_path / "log"))
    process.join(60)
    total = len((tmp_path / "log").read_text().splitlines())
    expected = [contents(side) for side in sides_in(folder, reference)]

    if number < 0:  # each writer removes what was in its place, and so does the join
        number = total + 4
    cache = tmp_path / "killed"
    process = fork(_die, str(folder), str(cache), owner, name, number)
    process.join(60)
    assert process.exitcode == 9
    log = tmp_path / "log-after"
    process = fork(_prepare, str(folder), str(cache), str(log))
    process.join(60)
    assert process.exitcode == 0
    made = len(log.read_text().splitlines()) if log.exists() else 0
    assert made == (0 if num_made is None else total - num_made)
    sides = sides_in(folder, cache)
    assert [contents(side) for side in sides] == expected
    assert names(cache) == {side.folder.name for side in sides}


@pytest.fixture
def unjoined(documents: Documents) -> Iterator[tuple[module._Target, ...]]:
    """The parts of a store that nobody has joined yet."""
    target = module._target(documents, TOKENIZER, None, SHARD, 1)
    module._make_parts(target, wait=True)
    return target.parts


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda place: _cut(place / "shard-00000.bin"),
        lambda place: _flip(place / "offsets.npy"),
        lambda place: _flip(place / "bytes.npy"),
        lambda place: (place / "bytes.npy").unlink(),
        lambda place: _cut(place / "index.json"),
        shutil.rmtree,  # as `archwright cache clean` does
    ],
)
def test_a_damaged_part_is_made_again(
    documents: Documents,
    unjoined: tuple[module._Target, ...],
    cache: Path,
    tmp_path: Path,
    damage: Callable[[Path], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_parts = module._make_parts

    def damaged(target: module._Target, *, wait: bool) -> None:
        make_parts(target, wait=wait)
        damage(unjoined[1].place)

    monkeypatch.setattr(module, "_make_parts", damaged)
    store = prepare_documents(documents, TOKENIZER)
    assert same_tokens(store, whole(documents, tmp_path / "whole"))
    assert names(cache) == {store.folder.name}


def test_where_there_are_no_links_files_are_copied(
    documents: Documents, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    store = prepare_documents(documents, TOKENIZER)
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    copied = prepare_documents(documents, TOKENIZER, tmp_path / "copied")
    assert contents(copied) == contents(store)


def test_a_joined_store_is_read_once(documents: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts are links to its files, whose times change when one is removed."""
    store = prepare_documents(documents, TOKENIZER)
    monkeypatch.setattr(TokenStore, "verify", lambda _: pytest.fail("read again"))
    prepare_documents(documents, TOKENIZER)
    TokenStore(store.folder)


def test_a_damaged_store_is_made_again(documents: Documents, cache: Path) -> None:
    store = prepare_documents(documents, TOKENIZER)
    before = contents(store)
    _cut(store.folder / "shard-00001.bin")
    with pytest.warns(UserWarning, match="the cached tokens of data.text were damaged"):
        again = prepare_documents(documents, TOKENIZER)
    assert contents(again) == before
    assert names(cache) == {store.folder.name}


def test_text_that_changes_meanwhile_leaves_nothing(folder: Path, cache: Path) -> None:
    corpus = open_corpus(DataSpec(text=(str(folder),)))
    target = module._target(corpus.held_out, TOKENIZER, None, SHARD, 1)
    module._make_parts(target, wait=True)
    assert names(cache)
    (folder / corpus.train.files[-1].file.name).write_text("short")
    with pytest.raises(UserError, match="changed while it was read"):
        prepare(corpus, TOKENIZER)
    assert names(cache) == set()


def test_a_disk_that_is_full_keeps_parts_that_are_whole(
    documents: Documents, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, left = Writer.add, iter(range(2))

    def refuse(self: Writer, encoded: object) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        add(self, encoded)  # type: ignore[arg-type]

    parts = module._target(documents, TOKENIZER, None, SHARD, 1).parts
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "add", refuse)
        with pytest.raises(UserError, match="No space left on device"):
            prepare_documents(documents, TOKENIZER)
    assert names(cache) == {part.place.name for part in parts[:2]}
    store = prepare_documents(documents, TOKENIZER)
    assert names(cache) == {store.folder.name}
