"""A store is read as one row of tokens, whatever its shards; a wrong folder is told."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archwright.data.prepare import prepare_documents
from archwright.data.store import TokenStore
from archwright.spec.data import DataSpec
from archwright.spec.errors import UserError
from archwright.text.bpe import raw_bytes
from archwright.text.corpus import open_texts
from archwright.text.tokenizer import Tokenizer

END = "<|endoftext|>"


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    (tmp_path / "a.txt").write_text("|".join("x" * i for i in range(1, 12)))
    documents = open_texts((str(tmp_path / "a.txt"),), DataSpec(separator="|"))
    return prepare_documents(documents, Tokenizer(raw_bytes([END]), END), shard=10)


def test_ranges_cross_shards(store: TokenStore) -> None:
    whole = np.array([i for n in range(1, 12) for i in [256] + [ord("x")] * n])
    assert len(store) == len(whole)
    assert len(store.index.shards) == -(-len(whole) // 10)

    @settings(max_examples=100)
    @given(st.integers(0, len(whole)), st.integers(0, len(whole)))
    def same(a: int, b: int) -> None:
        assert store[a:b].tolist() == whole[a:b].tolist()

    same()


def test_the_index_says_what_the_store_was_made_of(store: TokenStore) -> None:
    raw = Tokenizer(raw_bytes([END]), END)
    assert store.index.tokenizer == raw.fingerprint
    assert (store.end_of_text, store.num_documents, store.num_bytes) == (256, 11, 66)
    assert store.offsets.tolist() == np.cumsum([0, *range(2, 13)]).tolist()
    assert store.index.dtype == "uint16"


def test_a_changed_shard_is_found(store: TokenStore) -> None:
    store.verify()
    path = store.folder / store.index.shards[1].file
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{path.name}. is damaged"):
        store.verify()


def test_no_or_another_format_is_told(store: TokenStore, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no token store"):
        TokenStore(tmp_path)
    path = store.folder / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(UserError, match="has format 99, this version reads 1"):
        TokenStore(store.folder)
