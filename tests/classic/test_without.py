"""Without archwright/classic, all else works: a copy of the package that lacks the folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import SHAPE, tiny_words

pytestmark = pytest.mark.slow


def run(copy: Path, *words: str, code: int = 0) -> list[str]:
    """Return the lines of a command of the copy."""
    surroundings = {**os.environ, "PYTHONPATH": str(copy), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "archwright", *words],
        cwd=copy,
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return (done.stderr if code else done.stdout).splitlines()


def test_the_copy_is_the_one_that_runs(copy: Path) -> None:
    script = (
        "import archwright, sys; print(archwright.__file__, 'archwright.classic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(copy / "archwright" / "__init__.py"), "False"]


def test_lists_are_shown(copy: Path) -> None:
    assert any("modern" in line for line in run(copy, "list"))
    assert any("softmax" in line for line in run(copy, "explain", "attention"))


@pytest.mark.parametrize("preset", ["modern", "hybrid-3-1"])
def test_models_train(copy: Path, preset: str) -> None:
    words = tiny_words("text.txt", "budget=3steps")
    if preset != "modern":
        shape = [word for word in words[2:] if word not in SHAPE]
        words = ["train", preset, "--tiny", *shape, "data.tokenizer.kind=bytes", "batch_size=4"]
    run(copy, *words, "--out", preset, "--quiet")
    assert (copy / preset / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("word", "start"),
    [
        ("attention.kind=lsh", 'model.attention.kind: found "lsh"; expected one of'),
        ("attention.mask.kind=big_bird", 'model.attention.mask.kind: found "big_bird"; expected'),
        ("position.kind=axial", 'model.position.kind: found "axial"; expected one of'),
    ],
)
def test_its_kinds_are_unknown(copy: Path, word: str, start: str) -> None:
    (line,) = run(copy, "train", "modern", word, "data.text=text.txt", code=2)
    assert line.startswith(f"archwright: {start}")


def test_a_choice_from_outside_cannot_take_a_special_kind() -> None:
    """Also before anything has loaded the special choices: later, all specs would be refused."""
    code = (
        "from typing import Literal\nfrom archwright.spec.attention import SoftmaxAttention\n"
        "class Mine(SoftmaxAttention):\n    kind: Literal['lsh'] = 'lsh'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "is taken by archwright.classic.spec.lsh.LSHAttention" in done.stderr
