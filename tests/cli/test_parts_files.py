"""A choice from outside the package, from the first listing to the last evaluation."""

import shutil
import subprocess
from pathlib import Path

import pytest

from archwright.cli import main
from archwright.cli.parts_files import load_parts_file
from archwright.runs import RunFolder
from archwright.spec.norms import Norm
from tests.tiny import ROOT, archwright, tiny_words, write_text

FILE = ROOT / "tests" / "outside" / "centered_norm.py"
FEW = ("budget=3steps", "evaluate.final_max_tokens=50", "model.norm.kind=centered")


@pytest.fixture
def trained(place: Path) -> Path:
    write_text(place / "text.txt", 100)
    shutil.copy(FILE, place / "centered_norm.py")
    return place


def typed(place: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Each command is a process of its own, as choices stay in the one that they joined."""
    return archwright(*words, cwd=place)


def test_a_norm_from_outside(trained: Path) -> None:
    parts = ("--parts", "centered_norm.py")
    words = tiny_words("text.txt", *FEW)
    refused = typed(trained, *words)
    assert refused.returncode == 2
    assert 'model.norm.kind: found "centered"; expected one of' in refused.stderr
    assert not (trained / "runs").exists()

    listed = typed(trained, "list", "choices", *parts)
    assert "centered" in listed.stdout
    done = typed(trained, *words, *parts, "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    folder = RunFolder(trained / "runs" / "modern")
    assert set(folder.parts) == {"centered_norm.py"}
    assert 'kind = "centered"' in folder.spec_file.read_text()

    missing = "runs/modern was made with choices of centered_norm.py; add --parts centered_norm.py"
    for command in ("train --resume", "generate", "report"):
        without = typed(trained, *command.split(), "runs/modern")
        assert (without.returncode, without.stderr) == (2, f"archwright: {missing}\n")
    written = typed(trained, "generate", "runs/modern", *parts, "--max-tokens", "3")
    assert (written.returncode, written.stderr) == (0, "")
    measured = typed(trained, "eval", "runs/modern", "--text", "text.txt", *parts)
    assert "bits per byte" in measured.stdout
    resumed = typed(trained, "train", "--resume", "runs/modern", *parts)
    assert resumed.returncode == 0
    assert "finished already" in resumed.stderr


def test_a_changed_file(trained: Path) -> None:
    """For training it is another run; for the rest, worth a word."""
    parts = ("--parts", "centered_norm.py")
    words = tiny_words("text.txt", *FEW)
    assert typed(trained, *words, *parts, "--quiet").returncode == 0
    with (trained / "centered_norm.py").open("a") as file:
        file.write("# changed\n")
    for again in (words, ["train", "--resume", "runs/modern"]):
        refused = typed(trained, *again, *parts)
        assert refused.returncode == 2
        (line,) = refused.stderr.splitlines()
        assert "--parts centered_norm.py: not the file that runs/modern was made with" in line
    written = typed(trained, "generate", "runs/modern", *parts, "--max-tokens", "3")
    assert written.returncode == 0
    assert written.stderr == (
        "archwright: warning: centered_norm.py has changed since runs/modern was made with it\n"
    )


def test_postponed_annotations_are_understood(visitors: None, place: Path) -> None:
    """Specs are built later than they are defined; their module must still be there."""
    (place / "late.py").write_text(f"from __future__ import annotations\n{FILE.read_text()}")
    load_parts_file(place / "late.py")
    assert Norm.kinds["centered"].model_validate({"gain": 2.0}).model_dump() == {
        "kind": "centered",
        "gain": 2.0,
    }


def test_two_files_with_one_name_of_a_choice_clash(
    visitors: None, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(FILE, place / "one.py")
    shutil.copy(FILE, place / "other.py")
    assert main(["list", "choices", "--parts", "one.py", "--parts", "one.py"]) == 0
    capsys.readouterr()
    assert main(["list", "choices", "--parts", "one.py", "--parts", "other.py"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert 'norm.kind = "centered" is taken by one_' in line
