"""What shells complete: words as they are asked for, and keys pressed in real shells."""

import io
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path

import argcomplete
import pytest

from archwright.cli import completion, explain_verb
from archwright.cli.listings import listing
from archwright.cli.main import VERBS, main
from archwright.spec.choice import Choice
from archwright.spec.masks import Mask
from archwright.spec.model_spec import ModelSpec
from archwright.spec.norms import Norm
from archwright.spec.overrides import paths
from archwright.spec.read import preset_names, study_names
from archwright.spec.run_spec import LOGGERS, RunSpec
from tests.tiny import surroundings

HEAVY = {"torch", "numpy", "pydantic", "rich", "transformers"}
HOSTILE = "runs/$(touch PWNED)"

Complete = Callable[[str], list[str]]


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Returns the completions of a line behind `archwright`, in this process."""

    def completions(words: str) -> list[str]:
        out, line = io.StringIO(), f"archwright {words}"

        def autocomplete(parser: object, **options: object) -> None:
            finder = argcomplete.CompletionFinder()
            finder(parser, exit_method=sys.exit, output_stream=out, **options)

        monkeypatch.setattr(argcomplete, "autocomplete", autocomplete)
        monkeypatch.setattr(argcomplete.CompletionFinder, "_init_debug_stream", lambda self: None)
        asked = {"": "1", "_SHELL": "fish", "_IFS": "\n", "_SUPPRESS_SPACE": "1"}
        with monkeypatch.context() as context:
            for name, value in asked.items():
                context.setenv(f"_ARGCOMPLETE{name}", value)
            context.setenv("COMP_LINE", line)
            context.setenv("COMP_POINT", str(len(line)))
            with pytest.raises(SystemExit):
                main([])
        return out.getvalue().splitlines()

    return completions


def starting(known: list[str], text: str) -> set[str]:
    return {name for name in known if name.startswith(text)}


def test_verbs(complete: Complete) -> None:
    assert set(complete("")) == {*VERBS}
    assert complete("sh") == ["show"]
    assert complete("shwo ") == []


@pytest.mark.parametrize("verb", VERBS)
def test_options_of_every_verb(
    verb: str, complete: Complete, capsys: pytest.CaptureFixture[str]
) -> None:
    found = complete(f"{verb} -")
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    shown = capsys.readouterr().out
    assert "--help" in found
    assert all(option in shown for option in found)


def test_names(complete: Complete) -> None:
    models = preset_names("models")
    assert set(complete("show gemma-3")) == starting(models, "gemma-3")
    assert {*complete("train m")} >= starting([*preset_names("runs"), *models], "m")
    assert set(complete("compare norm-")) == starting(study_names(), "norm-")
    assert set(complete("diff textbook modern")) == starting(models, "modern")
    assert complete("show textbook moder") == []


def test_values_of_options(complete: Complete) -> None:
    assert complete("list --format c") == ["csv"]
    assert complete("plan modern --hardware h1") == ["h100"]
    assert complete("compare --match f") == ["flops"]
    assert complete("completion ") == ["bash", "zsh", "fish"]
    assert complete("cache c") == ["clean"]
    assert complete("new mi") == ["mixer"]
    assert complete("schema r") == ["run"]


def test_words_after_options(complete: Complete) -> None:
    for words in ("--tiny modern", "modern --tiny"):
        assert complete(f"show {words} norm.kind=la") == ["norm.kind=layer"]
    assert complete("compare textbook --budget 10m :norm.ki") == [":norm.kind="]


def test_files_where_nothing_else_is_known(complete: Complete, place: Path) -> None:
    for name in ("mine.toml", "my_norm.py"):
        (place / name).write_text("", "utf-8")
    for verb in ("train", "show", "plan"):
        assert {"mine.toml", "mixtral-8x7b"} <= {*complete(f"{verb} mi")}
    assert complete("show mine.toml mi") == ["mine.toml"]
    assert complete("train modern data.text=my") == ["data.text=my_norm.py"]
    assert complete("check my") == ["my_norm.py"]


def test_runs(place: Path, complete: Complete) -> None:
    for name in ("runs/mine", HOSTILE):
        (place / name).mkdir(parents=True)
        (place / name / "spec.toml").write_text("", "utf-8")
    (place / "runs" / "other").mkdir()
    for words in ("generate ", "report ru", "train --resume "):
        assert set(complete(words)) == {str(Path("runs/mine")), HOSTILE}


def test_every_kind(complete: Complete) -> None:
    for key, axis in (("norm", Norm), ("attention.mask", Mask)):
        for path, verb in product((f"{key}.kind=", f"model.{key}.kind="), ("train", "show")):
            kinds: dict[str, type[Choice]] = dict(axis.kinds)
            assert set(complete(f"{verb} modern {path}")) == {path + kind for kind in kinds}
            assert complete(f"{verb} modern {path[:-2]}") == [path]
    assert complete("show modern head.tied=") == ["head.tied=true", "head.tied=false"]
    assert complete("train modern loggers=") == [f"loggers={name}" for name in LOGGERS]
    assert complete("train modern logger") == ["loggers="]
    assert "norm.kind=" in complete("show modern nor")  # a table alone would end the word


def test_every_key_is_reached_a_table_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All paths that an override may name; a run's keys are not a model's."""
    monkeypatch.setattr(completion, "listing", cache(listing))
    for verb, cls in (("show", ModelSpec), ("train", RunSpec)):
        for path in {*paths(cls)}:
            name = path.rpartition(".")[2]
            if name in ("name", "source", "sources", "parts") or "layer_kinds" in path:
                continue
            found = completion._keys(path, verb)
            assert [text for text in found if text.startswith((f"{path}=", f"{path}."))], path
    assert "optimizer." in completion._keys("", "train")
    assert "norm." in completion._keys("", "train")
    assert completion._keys("optimizer.", "show") == []


def test_variants_of_a_study(complete: Complete) -> None:
    assert complete("compare modern :norm.kind=l") == [":norm.kind=layer"]
    assert complete("compare textbook:attention.mask.ki") == ["textbook:attention.mask.kind="]
    assert complete("compare modern data.text=C:x") == []


def test_lists(complete: Complete) -> None:
    assert set(complete("list norm=")) == {f"norm={kind}" for kind in Norm.kinds}
    assert {"models", "runs", "norm=", "norm.kind=", "mixer="} <= {*complete("list ")}
    assert complete("list choices swi") == ["swiglu"]


def test_what_can_be_explained(monkeypatch: pytest.MonkeyPatch, complete: Complete) -> None:
    """Every word that is offered is found."""
    assert {"rope", "rotary"} <= {*complete("explain ro")}
    assert complete("explain gq") == ["gqa"]
    assert {*complete("explain mask.w")} == {f"mask.{k}" for k in Mask.kinds if k[0] == "w"}
    monkeypatch.setattr(explain_verb, "_of_kind", lambda section, kind: ([], []))
    monkeypatch.setattr(explain_verb, "_numbers", lambda name: [])
    known = listing("choices")
    for word in {*complete("explain "), *complete("explain norm.")}:
        assert list(explain_verb._explanations(word, known)), word


@pytest.mark.parametrize(
    "words", ["tr", "train modern norm.kind=", "compare nor", "list norm=l", "explain ro"]
)
def test_completing_imports_nothing_heavy(words: str, place: Path) -> None:
    line = f"archwright {words}"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    program = (
        "import os, sys\nexit = os._exit\n"
        "def leave(code): print(*sys.modules); sys.stdout.flush(); exit(code)\n"
        "os._exit = leave\nfrom archwright.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=place,
        env=surroundings(**asked, _ARGCOMPLETE_STDOUT_FILENAME=str(place / "found")),
    )  # fmt: skip
    assert (place / "found").read_text()
    assert "argcomplete" in done.stdout.split()
    assert HEAVY & {*done.stdout.split()} == set()


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
    return {
        **env,
        "PATH": f"{place / 'bin'}{os.pathsep}{env['PATH']}",
        "TERM": "dumb",
        "PWD": str(place),
    }


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(name) is None, reason=f"no {name}")


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
    """In a terminal: a name, a kind behind an equals sign, a file where there is nothing else, and a run that is
    called as a command, which is quoted."""
    import pty

    run = Path(shell["PWD"]) / HOSTILE
    run.mkdir(parents=True)
    (run / "spec.toml").write_text("", "utf-8")

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
        types("archwright generate ru\t", r"runs/\$\(touch\ PWNED\)")
        types("\n", "archwright: ")
        assert not (run.parents[1] / "PWNED").exists()
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
