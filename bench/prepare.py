"""Prepare a large text file and report speed and peak memory: `python bench/prepare.py --mb 1000`."""

import argparse
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

import psutil

from archwright.data.prepare import num_threads, prepare
from archwright.spec.data import DataSpec, TokenizerSpec
from archwright.text.corpus import open_corpus
from archwright.text.open_tokenizer import open_tokenizer


class PeakMemory:
    """Watches the resident memory of this process and its children, twenty times a second."""

    def __init__(self) -> None:
        self.process = psutil.Process()
        self.peak = 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.done.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.done.wait(0.05):
            sizes = [self.process.memory_info().rss]
            for child in self.process.children(recursive=True):
                try:
                    sizes.append(child.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue
            self.peak = max(self.peak, sum(sizes))


def write_text(path: Path, size: int) -> None:
    """Write the standard library's source again and again, each time with other names in it."""
    documents = open_corpus(DataSpec()).train
    written = copy = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        while written < size:
            for document in documents:
                for piece in document.pieces:
                    text = piece.replace("self", f"self{copy}")[: size - written]
                    written += file.write(text)
            copy += 1


def main() -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=100, help="size of the text, in 10^6 bytes")
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--kind", choices=["bpe", "bytes"], default="bpe")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="archwright-bench-"))
    os.environ["ARCHWRIGHT_CACHE"] = str(folder / "cache")
    try:
        measure(folder / "text.txt", arguments)
    finally:
        shutil.rmtree(folder)


def measure(path: Path, arguments: argparse.Namespace) -> None:
    """Print seconds, MB/s and peak memory of each stage."""
    spec = TokenizerSpec(kind=arguments.kind, vocab_size=arguments.vocab)
    tokenizer = open_tokenizer(spec, open_corpus(DataSpec()).train)
    write_text(path, arguments.mb * 1_000_000)
    megabytes = path.stat().st_size / 1e6
    print(f"{megabytes:.0f} MB of text, {tokenizer}, {num_threads()} threads")
    with PeakMemory() as memory:
        before = memory.process.memory_info().rss
        started, cpu = time.perf_counter(), time.process_time()
        corpus = open_corpus(DataSpec(text=(str(path),)))
        surveyed = time.perf_counter() - started
        stores = prepare(corpus, tokenizer)
        seconds = time.perf_counter() - started
        cpu = time.process_time() - cpu
    print(f"survey (hash, UTF-8, split): {surveyed:.1f} s")
    print(f"in all: {seconds:.1f} s, {megabytes / seconds:.1f} MB/s, {stores.train}")
    print(f"processor time: {cpu:.1f} s, {megabytes / cpu:.1f} MB/s on each core")
    print(f"resident memory: {before / 1e6:.0f} MB before, peak {memory.peak / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
