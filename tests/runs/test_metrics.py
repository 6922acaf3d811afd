import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from archwright.runs.metrics import append_record, cut_records, read_records
from archwright.spec.errors import UserError


def record(step: int, **values: object) -> dict:
    return {"kind": "note", "step": step, **values}


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_records(path) == []
    append_record(path, record(1, loss=0.1 + 0.2, text="é\n", lr=1e-300))
    append_record(path, record(2, loss=math.nan, norm=[math.inf, 1], ok=True))
    append_record(path, record(3, loss=np.float32(0.5), n=np.int64(7), t=torch.tensor(2.5)))
    assert read_records(path) == [
        record(1, loss=0.1 + 0.2, text="é\n", lr=1e-300),
        record(2, loss=None, norm=[None, 1], ok=True),
        record(3, loss=0.5, n=7, t=2.5),
    ]
    assert len(path.read_text().splitlines()) == 3


def test_a_torn_last_line_is_ignored_and_then_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_record(path, record(1))
    whole = path.read_bytes()
    append_record(path, record(2))
    both = path.read_bytes()
    for end in range(len(whole), len(both)):
        path.write_bytes(both[:end])
        assert read_records(path) == [record(1)]
        append_record(path, record(3))
        assert read_records(path) == [record(1), record(3)]
    path.write_bytes(b'{"kind"')
    append_record(path, record(4))
    assert read_records(path) == [record(4)]


def test_damaged_lines_are_left_out_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_record(path, record(1))
    with path.open("ab") as file:
        file.write(b'\0\0\0\n[1]\n{"step": 3}\n{"kind": "train"}\n')
    append_record(path, record(2))
    with pytest.warns(UserWarning, match="4 lines are damaged and left out, the first is line 2"):
        assert read_records(path) == [record(1), record(2)]
    cut_records(path, 5)
    assert read_records(path) == [record(1), record(2)]


TRAIN = {"kind": "train", "step": 1, "tokens": 8, "seconds": 0.5, "loss": 2}
EVAL = {
    **{"kind": "eval", "step": 1, "tokens": 8, "seconds": 1, "nats_per_token": None},
    **{"perplexity": 3.0, "bits_per_byte": 1.5, "num_tokens": 5, "num_bytes": 9},
}
PROBES = {
    "kind": "probes",
    "step": 1,
    "tokens": 8,
    "seconds": 0,
    "values": {"log_z": {"head": None, "a": 1}},
}


@pytest.mark.parametrize(
    ("good", "changes"),
    [
        (TRAIN, [{"step": None}, {"step": "1"}, {"step": -1}, {"step": 2**60}, {"step": True}]),
        (TRAIN, [{"tokens": 1.5}, {"seconds": None}, {"seconds": -1}, {"loss": "2"}, {"lr": [1]}]),
        (TRAIN, [{"kind": 3}, {"kind": None}, {"kind": ["train"]}, {"loss": 10**400}]),
        (EVAL, [{"num_tokens": 0}, {"bits_per_byte": {}}, {"num_bytes": None}, {"perplexity": ""}]),
        (PROBES, [{"values": None}, {"values": {"a": 1}}, {"values": {"a": {"b": "c"}}}]),
        ({"kind": "baseline", "step": 1, "name": "gzip", "bits_per_byte": 1.0}, [{"name": 1}]),
        ({"kind": "event", "step": 1, "name": "stopped"}, [{"name": None}, {"text": 3}]),
        ({"kind": "length", "step": 1, "name": "512"}, [{"name": "long"}, {"nats_per_token": "1"}]),
    ],
)
def test_a_line_whose_fields_are_of_other_kinds_is_left_out(
    good: dict, changes: list[dict], tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    needed = {"train": ["tokens", "seconds"], "probes": ["values"]}.get(good["kind"], ["kind"])
    missing = [{key: good[key] for key in good if key != name} for name in ("step", *needed)]
    for line in (good, *(good | change for change in changes), *missing):
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
    with pytest.warns(UserWarning, match=f"{len(changes) + len(missing)} lines are damaged"):
        assert read_records(path) == [good]
    cut_records(path, 5)
    assert read_records(path) == [good]


def test_cut_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    cut_records(path, 0)
    assert not path.exists()
    for step in (0, 1, 2, 2, 3):
        append_record(path, record(step, loss=1 / 3))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines) + b'{"torn')
    cut_records(path, 2)
    assert path.read_bytes() == b"".join(lines[:4])
    before = path.stat()
    cut_records(path, 2)
    assert path.stat().st_ino == before.st_ino  # nothing to cut: not written again
    cut_records(path, -1)
    assert path.read_bytes() == b""
    assert list(tmp_path.iterdir()) == [path]


def test_a_cut_that_is_interrupted_cuts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    append_record(path, record(1))
    append_record(path, record(2))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cut_records(path, 1)
    assert read_records(path) == [record(1), record(2)]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of file sizes")
def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """In a process of its own, as the limit would hold for the report of the tests too."""
    path = tmp_path / "metrics.jsonl"
    program = f"""
import resource
from pathlib import Path
from archwright.runs.metrics import append_record
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
step = 0
while True:
    append_record(Path({str(path)!r}), {{"kind": "notes", "step": (step := step + 1)}})
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert "metrics.jsonl cannot be written" in done.stderr.splitlines()[-1]
    assert UserError.__name__ in done.stderr
    content = path.read_text()
    assert content.endswith("}\n")
    assert 950 < len(content) <= 1000
    assert [json.loads(line)["step"] for line in content.splitlines()] == [
        record["step"] for record in read_records(path)
    ]
