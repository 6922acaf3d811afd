"""Training a BPE: the same for ordinary text as ever, linear in long runs, and ended by Ctrl-C."""

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest
import regex
from tokenizers import pre_tokenizers, trainers

from archwright.spec.data import DataSpec, TokenizerSpec
from archwright.spec.errors import UserError
from archwright.text import bpe, bpe_training
from archwright.text.bpe import LONGEST, WORDS, has_long_run, train_here
from archwright.text.bpe_training import train_bpe
from archwright.text.corpus import open_texts
from archwright.text.open_tokenizer import open_tokenizer
from archwright.text.selfcheck import PROBE
from archwright.text.tokenizer import Tokenizer
from tests.tiny import surroundings

END = "<|endoftext|>"
CODE = "".join(
    Path(module.__file__).read_text("utf-8") for module in (subprocess, random, os, warnings)
)
LETTERS = "".join(random.Random(0).choices("abcdefgh", k=500_000))


def as_first_released(texts: list[str], vocab_size: int) -> str:
    """Return what the first releases trained: without a limit to words, in the same process."""
    tokenizer = bpe._byte_level(bpe.models.BPE(), bpe._words())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str())


@pytest.mark.slow
def test_ordinary_text_gives_the_tokenizer_it_always_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [CODE, PROBE.replace(END, ""), "x" * LONGEST]
    before = as_first_released(texts, 1000)
    assert train_bpe(texts, 1000, [END]).to_str() == before
    monkeypatch.setattr(bpe_training, "AT_ONCE", 1000)  # in a process of its own
    assert train_bpe(iter(texts), 1000, [END]).to_str() == before


def reference(text: str, num_merges: int) -> list[tuple[bytes, bytes]]:
    """Return the merges of a BPE, counted anew each time; of equal counts that of the lower ids."""
    words = Counter(tuple(bytes([b]) for b in word.encode()) for word in regex.findall(WORDS, text))
    names = bpe.byte_names()
    ids = {bytes([byte]): i for i, byte in enumerate(sorted(names, key=names.__getitem__))}
    merges = []
    for _ in range(num_merges):
        counts: Counter[tuple[bytes, bytes]] = Counter()
        for word, n in words.items():
            for pair in pairwise(word):
                counts[pair] += n
        best = min(counts, key=lambda pair: (-counts[pair], ids[pair[0]], ids[pair[1]]))
        merges.append(best)
        ids.setdefault(b"".join(best), len(ids))
        words = Counter({_merged(word, best): n for word, n in words.items()})
    return merges


def _merged(word: tuple[bytes, ...], pair: tuple[bytes, bytes]) -> tuple[bytes, ...]:
    parts: list[bytes] = []
    i = 0
    while i < len(word):
        if word[i : i + 2] == pair:
            parts.append(b"".join(pair))
            i += 2
        else:
            parts.append(word[i])
            i += 1
    return tuple(parts)


def test_special_tokens_are_borders_of_words() -> None:
    texts = [f"one{END}two{END}", f"{END}<|pad|>{END}"] * 9
    merges = train_bpe(texts, 400, [END, "<|pad|>"])
    assert (
        Tokenizer(merges, END).merges
        == Tokenizer(train_bpe(["one", "two"], 400, [END]), END).merges
    )


@pytest.mark.parametrize("text", [PROBE.replace(END, ""), CODE[:6000], "ab cd ef gh ij kl mn op"])
def test_of_equally_frequent_pairs_that_of_the_lower_ids_is_merged(text: str) -> None:
    tokenizer = Tokenizer(train_bpe([text], 257 + 60, [END]), END)
    assert tokenizer.merges == reference(text, len(tokenizer.merges))


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [LETTERS, "a" * 1_000_000, " " * 1_000_000, "".join(map(chr, range(0x4E00, 0x9F00))) * 10],
    ids=["letters", "one letter", "blanks", "CJK"],
)
def test_long_runs_are_trained_and_encoded_in_time(text: str) -> None:
    """Half a million letters took a minute and a half when words had no limit."""
    started = time.process_time()
    inner = train_here([text[i : i + (1 << 18)] for i in range(0, len(text), 1 << 18)], 500, [END])
    tokenizer = Tokenizer(inner, END)
    ids = tokenizer.encode(text)
    assert time.process_time() - started < 20
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text.encode())


def test_a_long_run_is_told_with_the_file_that_has_it(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text(CODE)
    (tmp_path / "runs.txt").write_text(LETTERS[: LONGEST + 1] + "\n")
    documents = open_texts((str(tmp_path),), DataSpec())
    with pytest.warns(UserWarning, match=r"data\.text: runs\.txt has more than 2,048 letters"):
        open_tokenizer(TokenizerSpec(vocab_size=300), documents)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (CODE, False), ("ab1" * LONGEST, False), ("ab " * LONGEST, False), ("a" * LONGEST, False),
        ("é" * (LONGEST + 1), True), ("x\n" + "=" * (LONGEST + 1), True), ("x" + " \n" * LONGEST, True),
    ],
)  # fmt: skip
def test_what_a_long_run_is(text: str, found: bool) -> None:
    assert has_long_run(text) == found


TRAIN = """
import sys
from archwright.text.bpe_training import train_bpe
def texts():
    yield from TEXTS
    print("sent", flush=True)
TEXTS = [open(sys.argv[1]).read()] * 40
train_bpe(texts(), 30_000, ["<e>"])
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_training_ends_with_the_process_that_asked_for_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "text").write_text(LETTERS)
    process = subprocess.Popen(
        [sys.executable, "-c", TRAIN, str(tmp_path / "text")],
        env=surroundings(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "sent\n"
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 1
    started = time.monotonic()
    process.send_signal(number)
    process.wait(60)
    assert psutil.wait_procs(children, timeout=60)[1] == []
    assert time.monotonic() - started < 10  # half a second where the machine has nothing else to do


def test_a_process_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe_training, "AT_ONCE", 10)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UserError, match="the training process ended with exit code 1"):
        train_bpe([CODE] * 3, 400, [END])


def test_what_fails_in_the_text_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe_training, "AT_ONCE", 10)

    def texts() -> object:
        yield CODE
        raise UserError("it changed")

    with pytest.raises(UserError, match="it changed"):
        train_bpe(texts(), 400, [END])  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_run_of_blanks_that_the_fast_way_cannot_take_is_encoded() -> None:
    tokenizer = Tokenizer(train_here(["a b   c    d"], 280, [END]), END)
    text = " " * 700_000 + "x"
    assert tokenizer.is_fast
    (ids,) = tokenizer.encode_many([text])
    assert ids.tolist() == tokenizer._inner.encode(text).ids
    assert ids.dtype == np.uint32
