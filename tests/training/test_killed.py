"""SIGKILL at random moments, from the first import to the last write: nothing is lost or changed."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from archwright.runs import RunFolder
from tests.tiny import archwright, command, surroundings, tiny_words, write_text

KILLS = 10
FREE = {"seconds", "tokens_per_second", "utilisation", "memory_bytes"}
"""What differs between any two runs."""


def words(text: Path, out: Path) -> list[str]:
    changes = ("budget=40steps", "checkpoint.every=5", "evaluate.every=15", "seed=3")
    few = ("evaluate.max_tokens=200", "evaluate.final_max_tokens=500")
    more = ("model.embedding.dropout=0.1", "data.tokenizer.kind=bpe")
    vocabulary = "data.tokenizer.vocab_size=300"
    return [*tiny_words(text, *changes, *few, *more, vocabulary), "--quiet", "--out", str(out)]


def results(folder: RunFolder) -> dict[str, Any]:
    """What must not depend on interruptions."""
    records = [r for r in folder.metrics() if r["kind"] != "event"]
    return {
        "weights": folder.model_file.read_bytes(),
        "samples": folder.samples(),
        "records": [{k: r[k] for k in r if k not in FREE} for r in records],
    }


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_killed_run_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", 200)
    start = time.monotonic()
    done = archwright(
        *words(text, tmp_path / "plain"), cwd=tmp_path, env={"ARCHWRIGHT_CACHE": "cache-a"}
    )
    whole = time.monotonic() - start
    assert (done.returncode, done.stderr) == (0, "")

    dice = random.Random()
    again = command(*words(text, tmp_path / "run"))
    environment = surroundings(ARCHWRIGHT_CACHE="cache-b")  # so that it is prepared anew
    seen = []
    for kill in range(KILLS):
        process = subprocess.Popen(again, cwd=tmp_path, env=environment)
        # Later and later, so that the whole way is covered, wherever the last one came to.
        delay = whole * (0.3 + 0.7 * kill / KILLS) * dice.uniform(0.7, 1.3)
        try:
            code = process.wait(delay)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            code = process.wait()
        seen.append((round(delay, 3), code))
        assert code in (0, -signal.SIGKILL), seen
    finished = archwright(*again[3:], cwd=tmp_path, env={"ARCHWRIGHT_CACHE": "cache-b"})
    assert (finished.returncode, finished.stderr) == (0, ""), seen

    plain, run = RunFolder.open(tmp_path / "plain"), RunFolder.open(tmp_path / "run")
    assert run.finished
    assert results(run) == results(plain), seen
    assert [p.name for p in run.path.glob(".*")] == []
    assert [p.name for p in run.checkpoints_folder.glob(".*")] == []
    assert json.loads(run.spec_file.with_name("environment.json").read_text())
