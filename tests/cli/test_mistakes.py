"""What a user gets wrong: one clear line for each mistake, exit code 2, and nothing made or lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from archwright.cli.parser import Parser
from archwright.runs import RunFolder
from tests.cli.typing_commands import contents, error_lines
from tests.sentences import Sentences, filled, keys
from tests.tiny import MACHINE, SHAPE, archwright, command, surroundings

TRAIN = f"train modern data.text=notes.txt {' '.join((*SHAPE, *MACHINE))} budget=3steps"
PLACES = {
    "TRAIN": TRAIN,
    "TRAIN_FP16": TRAIN.replace("precision=fp32", "precision=fp16"),
    "MAX_THREADS": str(4 * (os.cpu_count() or 1)),
}


@pytest.mark.usefixtures("visitors")
@pytest.mark.parametrize(("section", "words"), keys("mistakes"))
def test_a_mistake(
    section: str, words: str, files: Path, capsys: pytest.CaptureFixture[str], sentences: Sentences
) -> None:
    before = contents(files)
    found = error_lines(capsys, *filled(words, PLACES).split())
    assert contents(files) == before
    sentences.check(section, words, found, PLACES)


@pytest.mark.parametrize("words", ["export", "report", "train --resume"])
def test_a_checkpoint_in_place_of_a_run(
    words: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "my hub").mkdir()
    (place / "my hub" / "config.json").write_text("{}", "utf-8")
    more = ["out"] if words == "export" else []
    (line,) = error_lines(capsys, *words.split(), "my hub", *more)
    assert line == (
        "my hub is a checkpoint, not a run; to import it as a run: "
        "archwright import 'my hub' --out 'runs/my hub'"
    )
    (place / "runs" / "my hub").mkdir(parents=True)
    (place / "runs" / "my hub" / "spec.toml").touch()
    (line,) = error_lines(capsys, *words.split(), "my hub", *more)
    assert line.endswith("--out 'runs/my hub-imported'")


def test_a_checkpoint_inside_a_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = place / "runs" / "mine" / "checkpoints" / "step-3"
    folder.mkdir(parents=True)
    (place / "runs" / "mine" / "spec.toml").touch()
    for inside in ("checkpoints/step-3", "checkpoints", "spec.toml"):
        (line,) = error_lines(capsys, "generate", f"runs/mine/{inside}")
        assert line == f"runs/mine/{inside} is inside a run; give its folder: runs/mine"


@pytest.mark.skipif(
    "torch" in sys.modules and __import__("torch").cuda.is_available(), reason="GPU"
)
def test_a_gpu_that_is_not_here(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = error_lines(capsys, *f"{TRAIN} machine.device=cuda".split())
    assert line == 'machine.device: found "cuda"; expected "cpu", as no CUDA device is usable here'


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("batch_size=100000000", "batch_size: a step needs at least "),
        ("model.dim=1000000", "model: "),
    ],
)
def test_what_does_not_fit_into_memory(
    change: str, line: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [w for w in TRAIN.split() if w.partition("=")[0] != change.partition("=")[0]]
    found = [x for x in error_lines(capsys, *words, change) if not x.startswith("warning: ")]
    assert len(found) == 1
    assert found[0].startswith(line)
    assert "this machine has" in found[0]
    assert not (files / "runs").exists()


@pytest.mark.slow
def test_the_process_ends_with_2_and_lines_on_standard_error(files: Path) -> None:
    done = archwright("train", "modern", "data.text=note.txt", "--out", "here", cwd=files)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        'archwright: data.text: no file or folder "note.txt". Did you mean "notes.txt"?\n'
    )


@pytest.mark.slow
def test_the_corrected_command_works(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing that a mistake leaves is in its way."""
    assert error_lines(capsys, *TRAIN.replace("notes.txt", "note.txt").split())
    assert not (files / "runs").exists()
    assert error_lines(capsys, *TRAIN.split(), "--quiet", code=0) == []
    assert RunFolder.open("runs/modern").finished


REFUSED = """
import sys
from archwright.cli import main
code = main(sys.argv[1:])
print(code, "torch" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["plan moden", "plan modern :dmi=4", "profile moden", "show moden", "train moden"]
)
def test_a_misspelt_name_waits_for_no_torch(words: str, files: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, *words.split()], capture_output=True, text=True, check=True
    )
    assert done.stdout == "2 False\n"
    assert "Did you mean" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_messages_that_find_no_room_change_no_exit_code(place: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command("list", "oops"), env=surroundings(), stderr=full)
    assert done.returncode == 2


@pytest.mark.skipif(os.name == "nt", reason="needs ulimit")
def test_too_little_memory_to_begin_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (600_000 << 10, -1))
    (line,) = error_lines(capsys, "generate", "runs/none")
    assert line == "ulimit -v: found 600,000 kB; expected at least 1,048,576, to load torch"


@pytest.mark.parametrize("value", ["- item one", "- ", "-- x y", "-.5", "-1T"])
def test_a_value_may_begin_with_a_dash(value: str) -> None:
    parser = Parser("generate", "Generate text.")
    parser.add_argument("run")
    parser.add_argument("--prompt")
    assert parser.parse(["runs/a", "--prompt", value]).prompt == value
