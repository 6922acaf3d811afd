"""Training a BPE, in a process of its own where that takes long: the library hears no Ctrl-C, but a process can be
ended."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import IO

import tokenizers

from archwright.spec.errors import UserError
from archwright.text.bpe import train_here

AT_ONCE = 1 << 18
"""Characters that are trained on in a second or two; with more, Ctrl-C must be heard meanwhile."""
LENGTH = 8
"""Bytes that say how long a text is; a length of 0 ends them."""


def train_bpe(
    texts: Iterable[str], vocab_size: int, special_tokens: list[str]
) -> tokenizers.Tokenizer:
    """Return a byte-level BPE of at most `vocab_size` tokens: special ones, bytes, then merges.

    Texts are split at special tokens first. Of pairs that are equally frequent, the one of the lower ids is merged
    first.

    Source: Sennrich et al., 2016; on bytes as in Radford et al., 2019.

    Raises:
        UserError: the vocabulary has no room for the bytes.
    """
    smallest = 256 + len(special_tokens)
    if vocab_size < smallest:
        raise UserError(
            f"data.tokenizer.vocab_size: {vocab_size} is too small; 256 bytes and "
            f"{len(special_tokens)} special tokens need at least {smallest}."
        )
    held: list[str] = []
    size = 0
    texts = iter(texts)
    for text in texts:
        held.append(text)
        size += len(text)
        if size > AT_ONCE:
            return train_apart(chain(held, texts), vocab_size, special_tokens)
    return train_here(held, vocab_size, special_tokens)


def train_apart(
    texts: Iterable[str], vocab_size: int, special_tokens: list[str]
) -> tokenizers.Tokenizer:
    """Train as `train_here` does, in a process that ends when this one is interrupted or dies.

    Raises:
        UserError: it died, most likely for want of memory.
    """
    # The package comes from where this process has it, and nothing from the current folder (-P).
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path.append({root!r}); from archwright.text.bpe_training import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in a terminal is for this process alone
    )
    assert process.stdin
    assert process.stdout
    try:
        _send(process.stdin, texts, {"vocab_size": vocab_size, "special_tokens": special_tokens})
        content = process.stdout.read()  # its standard input stays open: its end would end it
        exit_code = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    if exit_code:
        raise UserError(
            f"data.tokenizer: the process that trains it ended with code {exit_code}, perhaps for "
            "want of memory. Train on less text, or free some memory."
        )
    return tokenizers.Tokenizer.from_str(content.decode("utf-8"))


def main() -> None:
    """Train on what standard input brings, and write the tokenizer.json to standard output."""
    stdin = sys.stdin.buffer
    settings = json.loads(stdin.readline())
    trained = train_here(_received(stdin), **settings)
    sys.stdout.buffer.write(trained.to_str().encode())
    sys.stdout.buffer.flush()
    os._exit(0)  # a thread still waits for the end of standard input


def _send(stdin: IO[bytes], texts: Iterable[str], settings: dict[str, object]) -> None:
    try:
        stdin.write(json.dumps(settings).encode() + b"\n")
        for text in filter(None, texts):
            content = text.encode()
            stdin.write(len(content).to_bytes(LENGTH, "little") + content)
        stdin.write(bytes(LENGTH))
        stdin.flush()
    except BrokenPipeError:
        pass  # it died; how, its exit code says


def _received(stdin: IO[bytes]) -> Iterator[str]:
    while length := int.from_bytes(stdin.read(LENGTH), "little"):
        yield stdin.read(length).decode()
    Thread(target=_end_with_parent, args=(stdin,), daemon=True).start()


def _end_with_parent(stdin: IO[bytes]) -> None:
    stdin.read(1)
    os._exit(1)
