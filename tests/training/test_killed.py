"""SIGKILL at random moments, from the first import to the last write: nothing is lost or changed."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from archwright.runs import RunFolder
from tests.tiny import archwright, command, surroundings, tiny_words, write_text

pytestmark = pytest.mark.slow

STEPS = 50
FREE = {"seconds", "cpu_seconds", "tokens_per_second", "utilisation", "memory_bytes"}
"""What differs between any two runs."""


def words(text: Path, out: Path) -> list[str]:
    changes = (f"budget={STEPS}steps", "checkpoint.every=5", "evaluate.every=15", "seed=3")
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


def last_step(folder: RunFolder) -> int:
    return max((record["step"] for record in folder.metrics()), default=0)


class Killed:
    """Starts the run again and again, each time to kill it at a random moment of some stage."""

    def __init__(self, again: list[str], folder: RunFolder, seconds: float) -> None:
        self.again, self.folder, self.seconds = again, folder, seconds
        self.environment = surroundings(ARCHWRIGHT_CACHE="cache-b")  # nothing is prepared yet
        self.dice = random.Random()
        self.seen: list[tuple[str, int, int]] = []

    def preparing(self) -> None:
        """From the first import on, until about the first step."""
        self._kill("preparing", lambda: True, self.seconds * self.dice.uniform(0.2, 0.6))

    def training(self) -> None:
        """In a step, an evaluation or a checkpoint, some steps further than the last time."""
        goal = min(last_step(self.folder) + self.dice.randint(1, 8), STEPS)
        self._kill("training", lambda: last_step(self.folder) >= goal, self.dice.uniform(0, 0.05))

    def finishing(self) -> None:
        """After the last step: evaluating, writing the sample, weights and page."""
        delay = self.seconds * self.dice.uniform(0, 0.2)
        self._kill("finishing", lambda: last_step(self.folder) == STEPS, delay)

    def _kill(self, stage: str, reached: Callable[[], bool], delay: float) -> None:
        process = subprocess.Popen(self.again, cwd=self.folder.path.parent, env=self.environment)
        while not reached() and process.poll() is None:
            time.sleep(0.002)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        self.seen.append((stage, last_step(self.folder), process.wait()))
        assert process.returncode in (0, -signal.SIGKILL), self.seen


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_killed_run_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", 200)
    start = time.monotonic()
    done = archwright(
        *words(text, tmp_path / "plain"), cwd=tmp_path, env={"ARCHWRIGHT_CACHE": "cache-a"}
    )
    assert (done.returncode, done.stderr) == (0, "")

    plain, run = RunFolder(tmp_path / "plain"), RunFolder(tmp_path / "run")
    again = words(text, run.path)
    killed = Killed(command(*again), run, time.monotonic() - start)
    for _ in range(2):
        killed.preparing()
    for _ in range(6):
        killed.training()
    for _ in range(2):
        killed.finishing()
    last = archwright(*again, cwd=tmp_path, env={"ARCHWRIGHT_CACHE": "cache-b"})
    assert (last.returncode, last.stderr) == (0, ""), killed.seen

    assert sum(code == -signal.SIGKILL for *_, code in killed.seen) >= 8, killed.seen

    assert run.finished
    expected, found = results(plain), results(run)
    for a, b in zip(expected["records"], found["records"], strict=False):
        assert a == b, killed.seen
    assert found == expected, killed.seen
    hidden = [p.name for folder in (run.path, run.checkpoints_folder) for p in folder.glob(".*")]
    assert hidden == [], killed.seen
