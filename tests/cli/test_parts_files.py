"""A choice from outside the package, from the first listing to the last evaluation."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from archwright.cli import main
from archwright.plugins import load_parts_file
from archwright.runs import RunFolder
from archwright.runs.load import open_run
from archwright.spec.errors import UserError
from archwright.spec.norms import Norm
from tests.tiny import ROOT, archwright, tiny_words, write_text

FILE = ROOT / "tests" / "outside" / "centered_norm.py"
FEW = ("budget=3steps", "evaluate.final_max_tokens=50", "model.norm.kind=centered")
PARTS = ("--parts", "centered_norm.py")


@pytest.fixture
def words(place: Path, visitors: None) -> list[str]:
    """The command line of a run with the norm; what joins in this process leaves afterwards."""
    write_text(place / "text.txt", 100)
    shutil.copy(FILE, place / "centered_norm.py")
    return tiny_words("text.txt", *FEW)


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    return code, *capsys.readouterr()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
@pytest.mark.parametrize("command", ["check", "list choices --parts"])
def test_a_pipe_is_refused_before_it_is_read(
    command: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo("pipe.py")
    said = "archwright: pipe.py: found a pipe; expected a file\n"
    assert typed(capsys, *command.split(), "pipe.py") == (2, "", said)


@pytest.mark.slow
def test_a_norm_from_outside(
    words: list[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = typed(capsys, *words)
    assert code == 2
    assert 'model.norm.kind: found "centered"; expected one of' in err
    assert not Path("runs").exists()

    _, listed, _ = typed(capsys, "list", "choices", *PARTS)
    assert "centered" in listed
    assert typed(capsys, *words, *PARTS, "--quiet") == (0, "", "")
    folder = RunFolder("runs/modern")
    assert set(folder.parts) == {"centered_norm.py"}
    assert 'kind = "centered"' in folder.spec_file.read_text()

    missing = "runs/modern was made with choices of centered_norm.py; add --parts centered_norm.py"
    for command in ("train --resume", "generate", "report", "eval --text text.txt --"):
        found = typed(capsys, *command.split(), "runs/modern")
        assert found == (2, "", f"archwright: {missing}\n")
    code, measured, _ = typed(capsys, "eval", "runs/modern", "--text", "text.txt", *PARTS)
    assert code == 0
    assert "bits per byte" in measured
    code, _, err = typed(capsys, "train", "--resume", "runs/modern", *PARTS)
    assert code == 0
    assert "finished already" in err

    # In a process that never heard of it before:
    written = archwright(
        "generate", "runs/modern", *PARTS, "--max-new-tokens", "3", "--quiet", cwd=place
    )
    assert (written.returncode, written.stderr) == (0, "")


@pytest.mark.slow
def test_a_changed_file(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """For training it is another run; for the rest, worth a word."""
    assert typed(capsys, *words, *PARTS, "--quiet") == (0, "", "")
    with Path("centered_norm.py").open("a") as file:
        file.write("# changed\n")
    for again in (words, ["train", "--resume", "runs/modern"]):
        code, _, err = typed(capsys, *again, *PARTS)
        assert code == 2
        (line,) = err.splitlines()
        assert "--parts centered_norm.py: not the file that runs/modern was made with" in line
    code, _, err = typed(
        capsys, "generate", "runs/modern", *PARTS, "--max-new-tokens", "3", "--quiet"
    )
    assert code == 0
    assert err == (
        "archwright: warning: centered_norm.py has changed since runs/modern was made with it\n"
    )


@pytest.mark.slow
def test_without_its_file_a_run_says_what_it_needs(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In Python, too, where there is no --parts."""
    assert typed(capsys, *words, *PARTS, "--quiet")[0] == 0
    del Norm.kinds["centered"]
    with pytest.raises(UserError) as caught:
        open_run("runs/modern")
    (line,) = caught.value.lines
    assert line.startswith("runs/modern was made with choices of centered_norm.py, which are not")
    assert 'found "centered"' in line


@pytest.mark.slow
@pytest.mark.parametrize("part", ["my_parts", "my_parts.norms"], ids=["folder", "module"])
def test_a_package_is_found_again_by_resumed_runs_and_workers(
    part: str,
    words: list[str],
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (place / "my_parts").mkdir()
    (place / "centered_norm.py").rename(place / "my_parts" / "norms.py")
    (place / "my_parts" / "__init__.py").write_text("from . import norms\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(place)])
    monkeypatch.setenv("PYTHONPATH", f"{os.environ.get('PYTHONPATH', '')}{os.pathsep}{place}")
    try:
        assert typed(capsys, *words, "--parts", part, "--quiet") == (0, "", "")
        assert set(RunFolder("runs/modern").parts) == {part}
        said = f"archwright: runs/modern was made with choices of {part}; add --parts {part}\n"
        assert typed(capsys, "train", "--resume", "runs/modern") == (2, "", said)
        assert typed(capsys, "train", "--resume", "runs/modern", "--parts", part)[0] == 0
        few = [
            "--seeds",
            "2",
            "--budget",
            "2steps",
            "--no-tune-lr",
            "--match",
            "none",
            "--quiet",
            "--parts",
        ]
        write_text(place / "long.txt", 2500)
        study = ["compare", "modern", ":norm.kind=centered", *tiny_words("long.txt")[2:]]
        assert main([*study, *few, part]) == 0, capsys.readouterr().err
    finally:
        for name in [name for name in sys.modules if name.startswith("my_parts")]:
            del sys.modules[name]


def test_postponed_annotations_are_understood(visitors: None, place: Path) -> None:
    """Specs are built later than they are defined; their module must still be there."""
    (place / "late.py").write_text(f"from __future__ import annotations\n{FILE.read_text()}")
    load_parts_file(place / "late.py")
    assert Norm.kinds["centered"].model_validate({"gain": 2.0}).model_dump() == {
        "kind": "centered",
        "gain": 2.0,
    }


@pytest.mark.slow
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


@pytest.mark.usefixtures("visitors")
def test_the_command_of_a_choice_from_outside_names_its_file(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "norms.py").write_text(
        "from typing import Literal\nimport torch\nimport archwright\n"
        "from archwright.spec.norms import Norm\n"
        "class Same(Norm):\n    '''Nothing is done.'''\n    kind: Literal['same_as_before'] = 'same_as_before'\n"
        "archwright.register(Same, lambda spec, dim, heads=None: torch.nn.Identity())\n",
        "utf-8",
    )
    assert main(["list", "choices", "same_as_before", "--parts", "norms.py"]) == 0
    line = "    archwright train modern model.norm.kind=same_as_before --parts norms.py"
    assert line in capsys.readouterr().out.splitlines()
