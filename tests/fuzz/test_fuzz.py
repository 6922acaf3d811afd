"""The fuzzer itself, and cases of every reader."""

import importlib.util
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import tomllib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from archwright.spec.errors import UserError
from tests.fuzz import cases, workers
from tests.fuzz.arrow_tables import read_table, write_table
from tests.fuzz.mutations import INFO, KINDS, mutated
from tests.fuzz.seeds import Seed
from tests.fuzz.targets import TARGETS, Target, missing
from tests.tiny import ROOT, surroundings


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs fork")
@pytest.mark.parametrize("number", ["40", pytest.param("200", marks=pytest.mark.release)])
def test_no_reader_falls(number: str) -> None:
    """Nothing falls, hangs, grows, is taken in silence or answered so that nobody can read it."""
    command = [sys.executable, "-m", "tests.fuzz", "--number", number, "--light", "--jobs", "1"]
    done = subprocess.run(
        command, cwd=ROOT, env=surroundings(), capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr + done.stdout
    tried = [target.name for target in TARGETS if not missing(target)]
    rows = [line for line in done.stdout.splitlines() if line.startswith(tuple(tried))]
    assert len(rows) == len(tried), done.stdout


NAMES = [target.name for target in TARGETS]


def grow() -> None:
    """Take memory from the system: what earlier tests gave back may be kept for the next."""
    room = mmap.mmap(-1, 200 << 20)
    np.frombuffer(room, np.uint8)[:] = 1


def hang() -> None:
    while True:
        pass


def refuse(text: str) -> None:
    raise UserError(text)


class Panic(BaseException):
    """As a library in another language raises it."""


def panic() -> None:
    raise Panic


ENDS: list[tuple[str, Callable[[], object], dict[str, bool]]] = [
    ("same", lambda: "valid", {"hashed": True}),
    ("other", lambda: "other", {}),
    ("silent", lambda: "other", {"hashed": True}),
    ("refused", lambda: refuse("a line"), {"hashed": True}),
    ("stuck", lambda: refuse("a line"), {"heals": True}),
    ("unreadable", lambda: print("a line\n" * 50, file=sys.stderr), {}),
    ("traceback", lambda: {}["x"], {}),
    ("traceback", panic, {}),
    ("traceback", lambda: os.kill(os.getpid(), signal.SIGKILL), {}),
    ("slow", hang, {}),
    ("big", grow, {}),
    ("big", lambda: np.ones(9 << 30, np.uint8), {}),
]


@pytest.mark.skipif(os.name == "nt", reason="needs fork")
@pytest.mark.parametrize(
    ("end", "act", "kind"), ENDS, ids=[f"{i}-{end}" for i, (end, *_) in enumerate(ENDS)]
)
def test_what_goes_wrong_is_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
    act: Callable[[], object],
    kind: dict[str, bool],
) -> None:
    """Two cases in a row: one that ends a process does not end the next."""
    if end == "slow":
        monkeypatch.setattr(cases, "CPU_SECONDS", 0.2)
        monkeypatch.setattr(workers, "CPU_SECONDS", 0.2)
    monkeypatch.setattr(workers, "GROWTH", 100 << 20)
    valid = b'{"x": 1}'

    def read(seed: Seed) -> object:
        return "valid" if Path("f.json").read_bytes() == valid else act()

    last = ("archwright.spec.errors:nearest",)
    seed = Seed("a file", {"f.json": valid}, {"f.json": "json"})
    target = Target("fake", lambda _: [seed], read, last, **kind)
    found = workers.judged(target, [seed], range(2), 0, tmp_path, jobs=1)
    assert [outcome.end for outcome in found] == [end, end]


def test_a_case_is_always_the_same(tmp_path: Path) -> None:
    target = next(target for target in TARGETS if target.name == "models")
    seeds = target.seeds(None)  # type: ignore[arg-type]
    first, again = (cases.Reader(target, list(seeds), tmp_path).case(7, 3) for _ in range(2))
    assert first == again
    assert first.content != first.seed.files[first.path]


def _array() -> bytes:
    content = BytesIO()
    np.save(content, np.arange(12))
    return content.getvalue()


def _tensors() -> bytes:
    return save({"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(8)}, {"format": "pt"})


def _part() -> bytes:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(8), "c": torch.tensor(1)}
    begins = {name: {"saved_offsets": [4, 0][: t.ndim]} for name, t in tensors.items()}
    return save(tensors, {INFO: json.dumps(begins)})


def _table(kind: str) -> bytes:
    if importlib.util.find_spec("pyarrow") is None:
        return b""
    import pyarrow

    found = pyarrow.table({"number": [1, 2, 3], "text": ["a", None, "é"]})
    return write_table(found, kind.encode(), Random(0))


def _line(line: bytes) -> Any:
    return json.loads(line)


def _same_array(array: Any) -> None:
    assert (array.dtype, array.shape) == (np.int64, (12,))


def _same_size(content: bytes, size: int) -> None:
    assert len(content) == size


def _header(content: bytes) -> None:
    """Check that the header is as long as it says and a table, and that its tensors fill the rest."""
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    ends = [entry["data_offsets"][1] for entry in header.values()]
    assert max(ends, default=0) <= len(content) - 8 - size


VALID: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "json": (b'{"a": 1, "b": [1.5, "x", true], "c": {"d": null}}', json.loads),
    "jsonl": (b'{"a": 1}\n{"b": "x"}\n{"c": [2]}\n', lambda c: [*map(_line, c.splitlines())]),
    "toml": (b'a = 1\nb = [1.5, "x"]\n[c]\nd = true\n', lambda c: tomllib.loads(c.decode())),
    "npy": (_array(), lambda c: _same_array(np.load(BytesIO(c)))),
    "tokens": (np.arange(40, dtype=np.uint16).tobytes(), lambda c: _same_size(c, 80)),
    "safetensors": (_tensors(), _header),
    "parts": (_part(), _header),
    "parquet": (_table("PAR1"), read_table),
    "arrow": (_table("ARROW1"), read_table),
}
"""A valid file of each kind, and what reads one whose container is kept."""


@pytest.mark.parametrize("kind", KINDS)
def test_half_of_the_changes_keep_the_container(kind: str) -> None:
    content, read = VALID[kind]
    if not content:
        pytest.skip("pyarrow is not installed")
    kept = 0
    for number in range(300):
        found = mutated(content, kind, Random(f"{kind}/{number}"))
        assert found.content != content
        if found.kept:
            kept += 1
            read(found.content)
    assert 0.4 < kept / 300 < 0.6
