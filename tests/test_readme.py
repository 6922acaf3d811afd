"""What the README tells a newcomer to type works, with small budgets; and so do the pieces of docs/."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from archwright.cli import main
from tests.tiny import MACHINE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PIECES = (ROOT / "docs" / "pieces.md").read_text("utf-8")
SHORT = ["--budget=2steps", "--size=0.02M", "--seeds=2", "--no-tune-lr", "--evaluation-tokens=1024"]
BYTES = "data.tokenizer.kind=bytes"
SHORTER = "model.context_length=64"
SMALL = [BYTES, SHORTER, "batch_size=2", "evaluate.final_max_tokens=500", *MACHINE]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run_python(code: str, folder: Path) -> str:
    """Return what code of a page prints, run in a folder by a process of its own."""
    (folder / "code.py").write_text(code, "utf-8")
    done = subprocess.run(
        [sys.executable, "code.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def commands() -> list[tuple[str, str]]:
    """Return each command with what the README prints below it."""
    said = "\n".join(blocks(README, "console"))
    found = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n?)*)", said, re.MULTILINE)
    return [(line, output) for line, output in found if not line.startswith("make ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of the user's own."""
    path = tmp_path_factory.mktemp("newcomer")
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8") * 2
    (path / "notes.txt").write_text(text, "utf-8")
    (path / "sentences.txt").write_text("la fugopa un vilota\n", "utf-8")
    (path / "test.tsv").write_text("la fugopa\tdera zymaky\n", "utf-8")
    return path


@pytest.fixture
def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder as the one in which commands are typed."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(folder / "cache"))
    return folder


def test_there_are_commands_of_every_sort() -> None:
    verbs = {line.split()[1] for line, _ in commands()}
    assert verbs >= {"train", "compare", "generate", "eval", "list", "show", "diff"}


@pytest.mark.sequence
@pytest.mark.usefixtures("place", "visitors")
@pytest.mark.parametrize(("line", "output"), commands(), ids=lambda text: text[:60].strip())
def test_a_command_does_what_it_says(
    line: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program, verb, *rest = shlex.split(line.replace("--seconds 5", "--seconds 0.1"))
    assert program == "archwright"
    if verb == "compare":
        rest = [w for w in rest if w not in ("--budget", "10m", "20m", "--seeds", "15")]
        rest += [*SHORT, "data.text=notes.txt", SHORTER, *MACHINE]
        rest += [] if "data.tokenizer" in line else [BYTES]
    if verb == "profile":
        rest += [
            *("context_length=64", "vocab_size=300"),
            *("--precision", "fp32", "--kernel", "sdpa"),
        ]
    if any(word.startswith("budget=") for word in rest):
        rest = [word for word in rest if not word.startswith("budget=")]
        rest += ["budget=3steps", *SMALL]
        if "modern" in rest and "model.dim=256" not in rest:
            rest += ["model.dim=64", "model.num_layers=2"]
    wrong = output.startswith("archwright: ")
    code = main([verb, *rest])
    printed = capsys.readouterr()
    assert code == (2 if wrong else 0), printed.err
    if wrong:
        assert printed.err == output.strip() + "\n"


@pytest.mark.parametrize(("name", "text"), [("README", README), ("pieces", PIECES)])
def test_the_python_runs(name: str, text: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes((folder / "notes.txt").read_bytes())
    code = "\n".join(blocks(text, "python"))
    small = ", ".join(f'"{word}"' for word in ["budget=3steps", *SMALL])
    run_python(code.replace('"budget=60s"', small), tmp_path)
