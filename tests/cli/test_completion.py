"""What shells complete: words as they are asked for, and keys pressed in real shells."""

import os
import select
import shutil
import subprocess
import sys
import time
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from archwright.cli import explain_verb, key_completion
from archwright.cli.complete_verb import candidates, described
from archwright.cli.completion_verb import SHELLS
from archwright.cli.listings import listing
from archwright.cli.main import VERBS, main
from archwright.inspection import explain
from archwright.spec.choice import Choice
from archwright.spec.masks import Mask
from archwright.spec.model_spec import ModelSpec
from archwright.spec.norms import Norm
from archwright.spec.overrides import paths
from archwright.spec.read import preset_names, study_names
from archwright.spec.run_spec import LOGGERS, RunSpec
from tests.tiny import surroundings

HEAVY = {"torch", "numpy", "pydantic", "rich", "transformers"}


def starting(known: list[str], text: str) -> set[str]:
    return {name for name in known if name.startswith(text)}


def test_verbs() -> None:
    assert set(candidates([""])) == {*VERBS, "--help", "--version"}
    assert candidates(["sh"]) == ["show"]
    assert candidates(["shwo", ""]) == []


@pytest.mark.parametrize("verb", VERBS)
def test_options_of_every_verb(verb: str) -> None:
    shown = described(verb).format_help()
    found = candidates([verb, "-"])
    assert "--help" in found
    assert all(option in shown for option in found)


def test_names() -> None:
    models = preset_names("models")
    assert set(candidates(["show", "gemma-3"])) == starting(models, "gemma-3")
    assert set(candidates(["train", "m"])) == starting([*preset_names("runs"), *models], "m")
    assert set(candidates(["compare", "norm-"])) == starting(study_names(), "norm-")
    assert candidates(["diff", "textbook", "moder"]) == [
        "modern",
        *["modernbert-base", "modernbert-large"],
    ]
    assert candidates(["show", "textbook", "moder"]) == []


def test_values_of_options() -> None:
    assert candidates(["list", "--format", "c"]) == ["csv"]
    assert candidates(["plan", "modern", "--hardware", "h1"]) == ["h100"]
    assert candidates(["completion", ""]) == [*SHELLS]
    assert candidates(["cache", "c"]) == ["clean"]
    assert candidates(["new", "mi"]) == ["mixer"]
    assert candidates(["new", "mixer", "mi"]) == []
    assert candidates(["generate", "--prompt", ""]) == []


def test_files_of_models_stand_beside_presets(place: Path) -> None:
    """A shell looks for files by itself only where nothing is offered."""
    for name in ("mine.toml", "my_norm.py"):
        (place / name).write_text("", "utf-8")
    for verb in ("train", "show", "plan"):
        found = candidates([verb, "mi"])
        assert "mine.toml" in found
        assert "mixtral-8x7b" in found
    assert candidates(["show", "mine.toml", "mi"]) == []
    assert candidates(["generate", "mi"]) == []


def test_runs(place: Path) -> None:
    (place / "runs" / "mine").mkdir(parents=True)
    (place / "runs" / "mine" / "spec.toml").write_text("", "utf-8")
    (place / "runs" / "other").mkdir()
    run = str(Path("runs/mine"))
    for words in (["generate", ""], ["report", "ru"], ["train", "--resume", ""]):
        assert candidates(words) == [run]


def test_every_kind() -> None:
    for key, axis in (("norm", Norm), ("attention.mask", Mask)):
        for path, verb in product((f"{key}.kind=", f"model.{key}.kind="), ("train", "show")):
            kinds: dict[str, type[Choice]] = dict(axis.kinds)
            assert set(candidates([verb, "modern", path])) == {path + kind for kind in kinds}
            assert candidates([verb, "modern", path[:-2]]) == [path]
    assert candidates(["show", "modern", "head.tied="]) == ["head.tied=true", "head.tied=false"]
    assert candidates(["train", "modern", "loggers="]) == [f"loggers={name}" for name in LOGGERS]


def test_every_key_is_reached_a_table_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All paths that an override may name; a run's keys are not a model's."""
    monkeypatch.setattr(key_completion, "listing", cache(listing))
    for verb, cls in (("show", ModelSpec), ("train", RunSpec)):
        for path in {*paths(cls)}:
            name = path.rpartition(".")[2]
            if name in ("name", "source", "sources", "parts") or "layer_kinds" in path:
                continue
            found = candidates([verb, "modern", path])
            assert {f"{path}=", f"{path}."} & {*found}, path
    assert "optimizer." in candidates(["train", "modern", ""])
    assert "norm." in candidates(["train", "modern", ""])
    assert candidates(["show", "modern", "optimizer."]) == []


def test_variants_of_a_study() -> None:
    assert candidates(["compare", "modern", ":norm.kind=l"]) == [":norm.kind=layer"]
    assert candidates(["compare", "textbook:attention.mask.ki"]) == [
        "textbook:attention.mask.kind="
    ]
    assert candidates(["compare", "modern", "data.text=C:x"]) == []


def test_lists() -> None:
    assert set(candidates(["list", "norm="])) == {f"norm={kind}" for kind in Norm.kinds}
    assert {"models", "runs", "norm=", "norm.kind=", "mixer="} <= {*candidates(["list", ""])}
    assert candidates(["list", "choices", "swi"]) == ["swiglu"]
    assert candidates(["list", "runs", "no"]) == []


def test_what_can_be_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every word that is offered is found; no words that a shell would break."""
    assert {"rope", "rotary"} <= {*candidates(["explain", "ro"])}
    assert candidates(["explain", "gq"]) == ["gqa"]
    assert {*candidates(["explain", "mask.w"])} == {f"mask.{k}" for k in Mask.kinds if k[0] == "w"}
    assert candidates(["explain", "rope", ""]) == []
    monkeypatch.setattr(explain_verb, "_of_kind", lambda section, kind: ([], []))
    monkeypatch.setattr(explain, "numbers_of_option", lambda name: [])
    known = listing("choices")
    for word in {*candidates(["explain", ""]), *candidates(["explain", "norm."])}:
        assert " " not in word
        assert list(explain_verb._found(word, known)), word


@pytest.mark.parametrize(
    "words", ["tr", "train modern norm.kind=", "compare nor", "list norm=l", "explain ro"]
)
def test_completing_imports_nothing_heavy(words: str, place: Path) -> None:
    program = (
        "import sys; from archwright.cli import main; main(['complete', *sys.argv[1:]])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words.split()],
        capture_output=True, text=True, check=True, cwd=place, env=surroundings(),
    )  # fmt: skip
    assert done.stdout.splitlines()
    assert HEAVY & {*done.stderr.split()} == set()


def test_words_that_are_wrong_complete_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["shwo", "x"], ["show", "modern", "nrom."], ["list", "yaer="], []):
        assert main(["complete", *words]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert (out == "") == bool(words)


# in shells ---------------------------------------------------------------------------------------


@pytest.fixture
def shell(place: Path) -> dict[str, str]:
    """The environment of a shell that finds the command of this checkout, in a folder with a file."""
    (place / "bin").mkdir()
    command = place / "bin" / "archwright"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m archwright "$@"\n', "utf-8")
    command.chmod(0o755)
    (place / "notes.txt").write_text("text", "utf-8")
    env = surroundings()
    return {**env, "PATH": f"{place / 'bin'}{os.pathsep}{env['PATH']}", "TERM": "dumb"}


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(name) is None, reason=f"no {name}")


@needs("bash")
@pytest.mark.parametrize(
    ("line", "last", "expected"),
    [
        ("archwright sho", "sho", ["show"]),
        ("archwright show modern norm.kind=la", "la", ["layer"]),
        ("archwright show modern norm.kind=", "", ["none", "layer", "rms", "dyt"]),
        ("archwright compare modern :norm.kind=la", "la", ["layer"]),
        ("archwright compare modern :norm.ki", "norm.ki", ["norm.kind="]),
        ("archwright schema ", "", ["model", "run", "study"]),
        ("archwright explain gq", "gq", ["gqa"]),
        ("archwright train modern data.text=no", "no", []),
    ],
)
def test_bash(line: str, last: str, expected: list[str], shell: dict[str, str]) -> None:
    """What the function of the script leaves in the place of the `last` word, as bash breaks words."""
    program = (
        'eval "$(archwright completion bash)"; COMP_LINE="$1"; COMP_POINT=${#1}\n'
        '_archwright archwright "$2" x; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", program, "bash", line, last],
        capture_output=True, text=True, check=True, env=shell,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.split() == expected


@needs("fish")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("archwright sho", ["show"]),
        ("archwright compare modern :norm.kind=la", [":norm.kind=layer"]),
        ("archwright train modern data.text=no", ["data.text=notes.txt"]),
    ],
)
def test_fish(line: str, expected: list[str], shell: dict[str, str]) -> None:
    program = f'archwright completion fish | source; complete -C "{line}"'
    done = subprocess.run(
        ["fish", "--no-config", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=shell,
    )
    assert [found.split("\t")[0] for found in done.stdout.splitlines()] == expected


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no terminals of this kind")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["bash", "--norc", "-i"], marks=needs("bash")),
        pytest.param(["zsh", "-f", "-i"], marks=needs("zsh")),
    ],
    ids=lambda words: words[0],
)
def test_pressing_tab(words: list[str], shell: dict[str, str]) -> None:
    """In a terminal: a name, a kind behind an equals sign, and a file where there is nothing else."""
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(words[0], words, shell)

    def types(text: str, expected: str) -> None:
        os.write(terminal, text.encode())
        seen, end = "", time.monotonic() + 20
        while expected not in seen and time.monotonic() < end:
            if select.select([terminal], [], [], 0.1)[0]:
                seen += os.read(terminal, 65536).decode("utf-8", "replace")
        assert expected in seen

    try:
        types(f'eval "$(archwright completion {words[0]})"; echo rea""dy\n', "ready")
        for line, expected in (
            ("archwright show gemma-3-2", "gemma-3-27b "),
            ("archwright show modern norm.kind=la", "norm.kind=layer "),
            ("archwright compare modern :norm.kind=la", ":norm.kind=layer "),
            ("archwright train modern data.text=no", "data.text=notes.txt "),
        ):
            types(f"{line}\t", expected)
            os.write(terminal, b"\x15")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
