"""A store of many tokens: seconds to the first batch, memory of a process that trains on it, and reading speed.

    python -m bench.store [--gb 10] [--folder DIR] [--keep]

Makes a store of so many 10^9 bytes of tokens, and one of a thousandth of it, with the package's own writer: letters
drawn at random, in documents of about a thousand. A tenth as much is held out. Each measurement is a process of its
own, and begins with no page of the store in memory. Anonymous memory (RssAnon) is what a process has for itself; pages
of mapped files are the system's, which takes them back when it needs them. Beside that, what a store of 10^11 tokens
asks for, without its shards: reading its index, and finding the rows of its batches. With --keep the stores stay, and
are used again by the next call. What is printed last is a table in Markdown. Linux only.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

if __name__ == "__main__":  # as a script, its own folder is on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))
from archwright.data.batches import Batches
from archwright.data.prepare import SHARD
from archwright.data.store import INDEX, VERIFIED, Arrays, Index, Shard, TokenStore
from archwright.data.writer import Encoded, Writer
from archwright.text.bpe import raw_bytes
from archwright.text.tokenizer import Tokenizer

DOCUMENT = 1000
"""Tokens of a document, on average."""
BLOCK = 1 << 22
"""Tokens that are written at a time."""
HUGE = 10**11
CONTEXT, ROWS, STEPS = 1024, 8, 40
TRAINED = (
    *("model.dim=64", "model.num_layers=2", f"model.context_length={CONTEXT}"),
    *("model.attention.num_heads=2", "model.attention.num_kv_heads=2"),
    *(f"batch_size={ROWS}", f"budget={STEPS}steps", "data.tokenizer.kind=bytes"),
    *("machine.device=cpu", "machine.threads=1", "machine.precision=fp32", "machine.kernel=sdpa"),
    *("machine.compile=none", "machine.fused=none", "machine.loss=chunked"),
)
"""A model that is small beside what its batches could take."""


def tokenizer() -> Tokenizer:
    """Return one of 256 bytes and a token that begins texts."""
    return Tokenizer(raw_bytes(["<e>"]), "<e>")


def make(folder: Path, num_tokens: int, seed: int) -> None:
    """Write a store of random letters."""
    if (folder / INDEX).exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    used = tokenizer()
    with Writer(folder, used, SHARD) as writer:
        for encoded in drawn(num_tokens, used.begin_of_text, seed):
            writer.add(encoded)
        writer.finish(f"{num_tokens} letters drawn with seed {seed}")


def drawn(num_tokens: int, begin_of_text: int, seed: int) -> Iterator[Encoded]:
    """Yield documents of random length, some at a time, as a tokenizer would."""
    dice = np.random.default_rng(seed)
    letters = dice.integers(ord("a"), ord("z") + 1, 2 * BLOCK, np.uint16)
    while num_tokens > 0:
        first, size = dice.integers(BLOCK), min(BLOCK, num_tokens)
        tokens = letters[first : first + size].copy()
        ends = np.cumsum(dice.integers(2, 2 * DOCUMENT, len(tokens) // DOCUMENT + 1))
        starts = np.concatenate([[0], ends[ends < len(tokens)]])
        tokens[starts] = begin_of_text
        lengths = np.diff(np.concatenate([starts, [len(tokens)]])) - 1
        yield Encoded(tokens, starts.tolist(), [0, *lengths.tolist()])
        num_tokens -= len(tokens)


def evict(folder: Path) -> None:
    """Let go of all pages of a store that are in memory."""
    for file in folder.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def anonymous() -> int:
    """Return the bytes of memory that this process has for itself."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith("RssAnon:"))
    return int(found) * 1024


class PeakMemory:
    """Watches the anonymous memory of this process, fifty times a second."""

    def __init__(self) -> None:
        self.peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.peak = max(self.peak, anonymous())


def verified(folder: Path) -> dict[str, float]:
    """Open a store that nobody has checked since this machine was started: all of it is read and hashed."""
    started = time.perf_counter()
    store = TokenStore(folder / "train")
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "bytes": 2 * len(store)}


def first_batch(folder: Path) -> dict[str, float]:
    """Open a store that was checked, and read the first batch of a training."""
    started = time.perf_counter()
    store = TokenStore(folder / "train")
    opened = time.perf_counter()
    Batches(store, CONTEXT, ROWS).at(0)
    now = time.perf_counter()
    return {"opened": opened - started, "seconds": now - started}


def training(folder: Path) -> dict[str, float]:
    """Train a small model, evaluated before and after, and look at the memory."""
    from archwright.spec.read import load_run
    from archwright.training.data import Material
    from archwright.training.evaluation import reading_of
    from archwright.training.progress import Silent
    from archwright.training.resolve import resolve

    run = load_run("modern").override(*TRAINED)
    started, before = time.perf_counter(), anonymous()
    with PeakMemory() as memory:
        material = Material(
            tokenizer(), TokenStore(folder / "train"), TokenStore(folder / "held_out")
        )
        session, _ = resolve(run, material, Silent())
        session.evaluate(material, reading_of(run, run.evaluate.max_tokens, None))
        session.step()
        first = time.perf_counter() - started
        early = anonymous()
        while session.standing.step < STEPS:
            session.step()
        late = anonymous()
        session.evaluate(material, reading_of(run, run.evaluate.max_tokens, None))
    return {"first": first, "before": before, "early": early, "late": late, "peak": memory.peak}


def reading(folder: Path) -> dict[str, float]:
    """Read batches of a training, whose rows lie anywhere, from the disk and from memory; then all in order."""
    batches, found = Batches(TokenStore(folder / "train"), CONTEXT, 32), {}
    for kind in ("disk", "memory"):
        started = time.perf_counter()
        for step in range(200):
            batches.at(step)
        found[kind] = 200 * 32 * CONTEXT / (time.perf_counter() - started)
    return found


class Nothing:
    """Tokens of which only the number is there."""

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.num_tokens

    def __getitem__(self, where: slice) -> NDArray[np.uint16]:
        self.asked.append(where.start)
        return np.zeros(where.stop - where.start, np.uint16)


def huge(_: Path) -> dict[str, float]:
    """Read an index of 10^11 tokens, and find the rows of the batches of a training on them."""
    shards = tuple(
        Shard(file=f"shard-{i:05}.bin", num_tokens=min(SHARD, HUGE - first), digest=f"{i:032x}")
        for i, first in enumerate(range(0, HUGE, SHARD))
    )
    index = Index(
        dtype="uint16",
        num_tokens=HUGE,
        num_documents=HUGE // DOCUMENT,
        num_bytes=HUGE,
        end_of_text=256,
        text="",
        tokenizer="",
        shards=shards,
        arrays=Arrays(offsets="0" * 32, bytes="0" * 32),
    )
    text = index.sealed().model_dump_json(indent=2)
    before = anonymous()
    started = time.perf_counter()
    assert Index.model_validate_json(text).is_intact
    read = time.perf_counter() - started
    started = time.perf_counter()
    batches = Batches(source := Nothing(HUGE), CONTEXT, 256)
    made = time.perf_counter() - started
    last = batches.windows_per_epoch // 256
    started = time.perf_counter()
    for step in (*range(100), *range(last - 100, last)):
        batches.at(step)
    seconds = (time.perf_counter() - started) / 200
    assert len({*source.asked}) == len(source.asked), "no window twice in an epoch"
    assert min(source.asked) >= 0
    assert max(source.asked) + CONTEXT < HUGE
    grown = anonymous() - before
    return {"read": read, "bytes": len(text), "made": made, "batch": seconds, "grown": grown}


MEASUREMENTS: dict[str, Callable[[Path], dict[str, float]]] = {
    "verified": verified,
    "first_batch": first_batch,
    "training": training,
    "reading": reading,
    "huge": huge,
}


def measured(name: str, folder: Path) -> dict[str, float]:
    """Return what a measurement finds in a process of its own."""
    for part in folder.iterdir():
        evict(part)
    words = [sys.executable, "-m", "bench.store", "--measure", name, "--folder", str(folder)]
    root = Path(__file__).parents[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(words, cwd=root, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    print(f"{folder.name}: {name}: {found}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=10, help="of tokens, in 10^9 bytes")
    parser.add_argument("--folder", type=Path, help="where the stores go (default: a new one)")
    parser.add_argument("--keep", action="store_true", help="leave the stores there")
    parser.add_argument("--measure", choices=MEASUREMENTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(MEASUREMENTS[options.measure](options.folder)))
        return
    folder = options.folder or Path(tempfile.mkdtemp(prefix="archwright-store-"))
    sizes = [options.gb / 1000, options.gb]
    try:
        columns = [column(folder / f"{gb:g}", int(gb * 5e8)) for gb in sizes]
        print(page(sizes, columns, measured("huge", folder / f"{sizes[0]:g}")))
    finally:
        if not options.keep:
            for gb in sizes:
                shutil.rmtree(folder / f"{gb:g}", ignore_errors=True)
            if not options.folder:
                folder.rmdir()


def column(folder: Path, num_tokens: int) -> dict[str, Any]:
    """Return all measurements of a store, which is made if it is not there."""
    started = time.perf_counter()
    for seed, (part, share) in enumerate((("train", 1.0), ("held_out", 0.1))):
        make(folder / part, int(num_tokens * share), seed)
    print(f"{folder.name}: made in {time.perf_counter() - started:.1f} s", file=sys.stderr)
    for part in ("train", "held_out"):
        for kept in (folder / part).glob(VERIFIED):
            kept.unlink()
    found = {name: measured(name, folder) for name in ("verified", "first_batch")}
    TokenStore(folder / "held_out")
    return found | {name: measured(name, folder) for name in ("training", "reading")}


def page(sizes: list[float], columns: list[dict[str, Any]], far: dict[str, float]) -> str:
    """Return the table."""
    mb = 1e6
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "opened first since the machine was started: all is read and hashed": lambda c: (
            f"{c['verified']['seconds']:.2f} s"
        ),
        "opened again, to the first batch": lambda c: f"{c['first_batch']['seconds']:.2f} s",
        "a training: opened, model built, evaluated, first step": lambda c: (
            f"{c['training']['first']:.1f} s"
        ),
        f"its anonymous memory after step 1, after step {STEPS}, at most": lambda c: ", ".join(
            f"{c['training'][name] / mb:.0f} MB" for name in ("early", "late", "peak")
        ),
        f"batches of 32 rows of {CONTEXT} from the disk, from memory": lambda c: ", ".join(
            f"{c['reading'][name] / mb:.1f}M tokens/s" for name in ("disk", "memory")
        ),
    }
    heads = " | ".join(f"{gb:g} GB, {gb * 5e8 / mb:,.0f}M tokens" for gb in sizes)
    lines = [f"| | {heads} |", "|---|" + "---|" * len(sizes)]
    lines += [f"| {name} | {' | '.join(map(cell, columns))} |" for name, cell in rows.items()]
    lines.append(
        f"\nOf 10^11 tokens: index of {far['bytes'] / 1e3:.0f} kB read in {far['read'] * 1e3:.0f} ms, batches made in "
        f"{far['made'] * 1e3:.1f} ms, each of 256 rows found and copied in {far['batch'] * 1e3:.1f} ms, "
        f"{far['grown'] / mb:.0f} MB more memory after 200 of them."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
