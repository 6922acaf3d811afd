"""Ctrl-C and SIGTERM in a process of its own: save, say how to go on, and leave with 128 + n."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from archwright.runs import RunFolder
from tests.tiny import command, surroundings, tiny_words, write_text

LONG = ("budget=100000steps", "evaluate.every=1000000")


def steps(folder: RunFolder) -> list[int]:
    return [record["step"] for record in folder.metrics() if record["kind"] == "train"]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_signals_save_and_leave(place: Path) -> None:
    text = write_text(place / "text.txt", 100)
    begin = command(*tiny_words(text, *LONG), "--quiet", "--out", "my run")
    again = command("train", "--resume", "my run", "--quiet")
    folder = RunFolder(place / "my run")
    reached = 0
    for words, number, code in ((begin, signal.SIGINT, 130), (again, signal.SIGTERM, 143)):
        process = subprocess.Popen(
            words, cwd=place, env=surroundings(), stderr=subprocess.PIPE, text=True
        )
        while len(steps(folder)) <= reached + 2 and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(number)
        _, err = process.communicate(timeout=600)
        assert process.returncode == code
        reached = steps(folder)[-1]
        assert err == (
            f"archwright: stopped at step {reached} and saved; "
            "go on with: archwright train --resume 'my run'\n"
        )
        assert max(folder.checkpoints()) == reached
        assert steps(folder) == list(range(1, reached + 1))
        assert folder.metrics()[-1]["name"] == "stopped"
