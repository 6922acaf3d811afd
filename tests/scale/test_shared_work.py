"""What processes do once together, and how long they wait for the first one."""

import json
from pathlib import Path

import pytest

from archwright.runs import RunFolder
from tests.scale.together import TWELVE_STEPS, assert_close, gone_back, started, trained
from tests.tiny import tiny_words

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number", [2, pytest.param(3, marks=pytest.mark.release)])
def test_each_piece_of_work_is_done_by_one_process(number: int, tmp_path: Path) -> None:
    """The results, which all have, are those of one process: `shared_work` holds them against these."""
    out = tmp_path / "found.json"
    done = started(number, "-m", "tests.scale.shared_work", str(out))
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text("utf-8"))
    assert len(found) == 6
    for work, (*numbers, expected) in found.items():
        assert numbers == [expected] * len(numbers), work


@pytest.mark.parametrize("change", [pytest.param("slow", marks=pytest.mark.release), "reading"])
def test_all_wait_however_long_one_works_alone(change: str, text: Path, tmp_path: Path) -> None:
    """The first one that samples, or another one that reads, as on a machine that verifies a large store for itself."""
    words = tiny_words(text, "budget=2steps", "evaluate.final_max_tokens=100")
    words = *words, "--out", str(tmp_path / "run"), "--quiet"
    done = started(2, "-m", "tests.scale.altered", change, *words)
    assert done.returncode == 0, done.stderr
    assert RunFolder(tmp_path / "run").finished


def test_one_that_cannot_read_says_so_at_once(text: Path, tmp_path: Path) -> None:
    words = *tiny_words(text, "budget=2steps"), "--out", str(tmp_path / "run"), "--quiet"
    done = started(2, "-m", "tests.scale.altered", "unread", *words)
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("archwright: ")]
    assert lines == ["archwright: process 1 of 2: the text has changed"]


def test_a_run_that_goes_on_draws_no_weights(text: Path, tmp_path: Path) -> None:
    words = tiny_words(text, *TWELVE_STEPS)
    folder = trained(2, tmp_path / "run", *words)
    before = tmp_path / "before.safetensors"
    before.write_bytes(folder.model_file.read_bytes())
    gone_back(folder, 6)
    resume = ("train", "--resume", str(folder.path), "--quiet")
    done = started(2, "-m", "tests.scale.altered", "undrawn", *resume)
    assert done.returncode == 0, done.stderr
    assert_close(folder.model_file, before, atol=0)
