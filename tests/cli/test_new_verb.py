"""`archwright new`: files to start from pass `check`, and the commands that are printed work."""

import errno
import io
import shlex
from pathlib import Path
from typing import Any

import pytest

from archwright.cli import main
from archwright.cli.new_verb import FOLDER, KEYS, KINDS, OTHERS
from archwright.plugins import choices_of, load_parts_file
from archwright.runs import RunFolder
from archwright.spec.checking import checked
from archwright.testing import check_file
from tests.tiny import MACHINE, SHAPE, write_text

pytestmark = pytest.mark.usefixtures("visitors")

SMALL = (*SHAPE, *MACHINE, "data.text=text.txt", "evaluate.max_tokens=512")
FEW = {
    "train": (*SMALL, "budget=2steps", "--quiet"),
    "compare": (
        *(*SMALL, "--budget", "2steps", "--seeds", "2", "--no-tune-lr", "--size", "given"),
        *("--match", "none", "--evaluation-tokens", "1024", "--quiet"),
    ),
}
"""What makes a command that is printed one of seconds."""


def new(capsys: pytest.CaptureFixture[str], kind: str, name: str) -> list[list[str]]:
    """Write a file; return the commands that are printed."""
    assert main(["new", kind, name]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = [line for line in out.splitlines() if line.startswith("  archwright ")]
    return [shlex.split(line)[1:] for line in lines]


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_printed_works(kind: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(place / "text.txt", 4000)
    name = "mine.toml" if kind == "model" else "mine.py"
    commands = new(capsys, kind, name)
    verbs = [words[0] for words in commands]
    assert verbs == ["check", *(["show"] if kind == "model" else []), "train", "compare"]
    for verb, *words in commands:
        for flag in [word for word in words if word.startswith("budget=")]:
            words.remove(flag)
        if "--budget" in words:
            at = words.index("--budget")
            del words[at : at + 2]
        few = FEW.get(verb, ())
        if kind == "attention":  # whose options are its own
            few = tuple(word for word in few if not word.startswith("model.attention."))
        assert main([verb, *words, *few]) == 0, capsys.readouterr().err
    folder = RunFolder.open(next(Path("runs").iterdir()))
    assert folder.finished
    if kind != "model":
        assert set(folder.parts) == {"mine.py"}
        assert 'kind = "mine"' in folder.spec_file.read_text("utf-8")
    assert [*Path("studies").glob("*/report.html")]


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize("kind", KEYS)
def test_a_choice_is_called_as_its_file(
    kind: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = new(capsys, kind, "Half-life 2.py")
    assert commands[0] == ["check", "Half-life 2.py"]
    assert f"{KEYS[kind]}=half_life_2" in commands[1]
    (found,) = check_file(place / "Half-life 2.py")
    assert found.good
    assert found.kind == "half_life_2"
    text = (place / "Half-life 2.py").read_text("utf-8")
    assert "archwright check 'Half-life 2.py'" in text
    assert "my_" not in text.lower()


@pytest.mark.parametrize(
    "name", ["rms", "norm", "spec", "class", "2", "ü", "weight", 'a"""b', "a\\b"]
)
def test_names_that_cannot_be_a_kind(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of another choice, of something in the file, of Python's, no name at all: as in the example."""
    commands = new(capsys, "norm", f"{name}.py")
    kind = {'a"""b': "a_b", "a\\b": "a_b"}.get(name, "my_norm")
    assert f"model.norm.kind={kind}" in commands[1]
    load_parts_file(place / f"{name}.py")
    (choice,) = choices_of(place / f"{name}.py")
    assert choice.model_fields["kind"].default == kind


def test_two_files_stand_beside_each_other(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one.py", "other.py"):
        new(capsys, "norm", name)
        load_parts_file(place / name)
    kinds = {choice.model_fields["kind"].default for choice in choices_of(place / "one.py")}
    assert kinds == {"one"}


def test_a_model_to_start_from_uses_what_it_explains(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new(capsys, "model", "mine.toml")
    text = (place / "mine.toml").read_text("utf-8")
    assert "archwright check mine.toml" in text
    spec = checked("mine.toml").model
    assert [*spec.layers.cycle] == ["local", "local", "default"]
    assert (spec.name, spec.dim, spec.norm.kind) == ("mine", 768, "rms")


def test_a_file_that_is_there_stays(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "mine.py").write_text("mine", "utf-8")
    (place / "link.py").symlink_to("nowhere.py")
    for name in ("mine.py", "link.py"):
        assert main(["new", "norm", name]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line == (f"archwright: {name}: already exists; give another name")
    assert (place / "mine.py").read_text("utf-8") == "mine"
    assert not (place / "nowhere.py").exists()


def test_a_disk_that_is_full_leaves_no_file(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    plain = Path.open

    def opened(path: Path, mode: str = "r", **options: Any) -> Any:
        file = plain(path, mode, **options)
        return Full() if mode == "x" else file

    monkeypatch.setattr(Path, "open", opened)
    assert main(["new", "norm", "mine.py"]) == 2
    assert capsys.readouterr().err == (
        "archwright: mine.py: cannot be written: No space left on device\n"
    )
    assert not (place / "mine.py").exists()


def test_every_kind_has_its_file_and_every_other_word_a_kind() -> None:
    assert {path.stem for path in FOLDER.glob("*.*")} == {*KINDS}
    assert {*OTHERS.values()} <= {*KINDS}
    assert not {*OTHERS} & {*KINDS}
