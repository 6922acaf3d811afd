"""BPE training. Long training uses a child process, because the library ignores Ctrl-C but a process can be killed."""

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
"""Maximum characters to train on in this process (a second or two without Ctrl-C)."""
LENGTH = 8
"""Number of bytes that give the length of the next text. A length of 0 marks the end of the stream."""


def train_bpe(
    texts: Iterable[str], vocab_size: int, special_tokens: list[str]
) -> tokenizers.Tokenizer:
    """Train a byte-level BPE of at most `vocab_size` tokens.

    Ids: special tokens, bytes, then merges. Texts are split at special tokens first. Of equally frequent pairs, the
    pair with the lower ids is merged first.

    Source: Sennrich et al. (2016); on bytes: Radford et al. (2019).

    Raises:
        UserError: `vocab_size` is too small for the bytes and special tokens.
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
    """Train in a child process, which never outlives this one.

    Raises:
        UserError: The child died, most likely out of memory.
    """
    # Import the package from where this process has it, and nothing from the current folder (-P).
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path.append({root!r}); from archwright.text.bpe_training import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in a terminal reaches only this process
    )
    assert process.stdin
    assert process.stdout
    try:
        _send(process.stdin, texts, {"vocab_size": vocab_size, "special_tokens": special_tokens})
        content = process.stdout.read()  # the child exits when its standard input closes
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
            f"data.tokenizer: the training process ended with exit code {exit_code}, perhaps "
            "out of memory. Train on less text, or free some memory."
        )
    return tokenizers.Tokenizer.from_str(content.decode("utf-8"))


def main() -> None:
    """Train on texts from standard input; write the tokenizer.json to standard output."""
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
        pass  # it died; its exit code follows


def _received(stdin: IO[bytes]) -> Iterator[str]:
    while length := int.from_bytes(stdin.read(LENGTH), "little"):
        yield stdin.read(length).decode()
    Thread(target=_end_with_parent, args=(stdin,), daemon=True).start()


def _end_with_parent(stdin: IO[bytes]) -> None:
    stdin.read(1)
    os._exit(1)
