"""The smallest run that is a run: a text of a few words, bytes as tokens, one layer."""

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from archwright.spec.read import load_run
from archwright.spec.run_spec import RunSpec

ROOT = Path(__file__).parents[1]
WORDS = "the of and to in model attention layer norm residual head token query key value"
SHAPE = (
    "model.dim=32",
    "model.num_layers=1",
    "model.context_length=32",
    "model.attention.num_heads=2",
    "model.attention.num_kv_heads=1",
    "data.tokenizer.kind=bytes",
    "batch_size=4",
)
MACHINE = (
    "machine.threads=1",
    "machine.precision=fp32",
    "machine.float32_matmul_precision=highest",
    "machine.kernel=sdpa",
)
"""Nothing to measure, and the same everywhere."""


def write_text(path: Path, num_lines: int = 400) -> Path:
    """Write lines of random words, always the same."""
    dice = random.Random(0)
    words = WORDS.split()
    lines = [" ".join(dice.choice(words) for _ in range(9)) for _ in range(num_lines)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def tiny_run(text: Path | str, *assignments: str) -> RunSpec:
    """Return a run of a tiny model on a text."""
    return load_run("modern").override(*_changes(text, assignments))


def tiny_words(text: Path | str, *assignments: str) -> list[str]:
    """Return the command line of `tiny_run`."""
    return ["train", "modern", *_changes(text, assignments)]


def _changes(text: Path | str, assignments: Iterable[str]) -> list[str]:
    """Return all assignments, later ones in place of earlier ones of the same key."""
    given = (f"data.text={text}", *SHAPE, *MACHINE, *assignments)
    return list({assignment.partition("=")[0]: assignment for assignment in given}.values())


def command(*words: str) -> list[str]:
    """Return the command `archwright` with its words, as a list for subprocesses."""
    return [sys.executable, "-m", "archwright", *words]


def surroundings(**more: str) -> dict[str, str]:
    """Return an environment in which the checkout is importable and one thread computes, without what commands
    in this process have set for those that they start."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    here = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return here | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | more


def archwright(
    *words: str, cwd: Path, env: Mapping[str, str] | None = None, text: str | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command line in a process of its own, in a folder; leave out what it says while one waits, which
    hangs on the machine."""
    done = subprocess.run(
        command(*words),
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=surroundings(**(env or {})),
        input=text,
        timeout=600,
    )
    done.stderr = re.sub(r"^archwright: preparing to .*\n", "", done.stderr, count=1)
    return done
