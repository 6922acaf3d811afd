"""`archwright prepare` makes what `archwright train` reads, by one process or several, and says where it is."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from archwright.cli import main
from archwright.runs import RunFolder
from archwright.spec.run_spec import RunSpec
from archwright.text.cache import only_one
from archwright.training.data import Material, prepare_data, text_material
from tests.cli.typing_commands import contents, error_lines
from tests.tiny import command, surroundings, tiny_run, write_text

BYTES = "data.tokenizer.kind=bytes"
PATIENCE = 150
"""Seconds, for a machine at work."""


@pytest.fixture
def text(place: Path) -> Path:
    folder = place / "texts"
    folder.mkdir()
    for i in range(4):
        write_text(folder / f"{i}.txt", 30 + i)
    return folder


def prepared(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["prepare", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return [str(line) for line in out.splitlines()]


def folders(lines: list[str]) -> list[str]:
    return [line.split()[-1] for line in lines if re.match("training|held out", line)]


def test_it_makes_what_training_reads_and_says_where(
    text: Path, cache: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("modern", f"data.text={text}", "data.tokenizer.vocab_size=300")
    lines = prepared(capsys, *words)
    assert lines[0].split() == ["tokens", "documents", "text", "bytes", "per", "token", "folder"]
    assert re.fullmatch(r"training +[\d,]+ +3 +[\d.]+ kB +\d\.\d\d +/.*", lines[1])
    assert re.fullmatch(r"held out +[\d,]+ +1 +[\d.]+ kB +\d\.\d\d +/.*", lines[2])
    assert re.fullmatch(r"tokenizer of 300 tokens; ready after .*s", lines[-1])
    before = contents(cache)
    again = prepared(capsys, *words)
    assert folders(again) == folders(lines)
    run = tiny_run(text, "data.tokenizer.kind=bpe", "data.tokenizer.vocab_size=300")
    material = prepare_data(run, RunFolder(place / "run"))
    assert [str(store.folder) for store in (material.train, material.held_out)] == folders(lines)
    assert contents(cache) == before
    assert {path.name for path in (cache / "tokens").iterdir()} == {
        Path(folder).name for folder in folders(lines)
    }


def test_several_processes(
    text: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This one waits until those that it has started have made all."""

    def later(run: RunSpec, threads: int | None = None) -> Material:
        end = time.monotonic() + 300
        while len([*cache.glob("tokens/[0-9a-f]*/index.json")]) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        made.extend(cache.glob("tokens/[0-9a-f]*/index.json"))
        return text_material(run, threads)

    made = list[Path]()
    monkeypatch.setattr("archwright.lab.running.prepare.text_material", later)
    words = ("modern", f"data.text={text}", BYTES)
    found = folders(prepared(capsys, *words, "--processes", "3"))
    assert {str(path.parent) for path in made} == {*found}
    assert folders(prepared(capsys, *words)) == found


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "prepare what? Name a recipe, a model or a TOML file, such as: archwright prepare"),
        (("data.text=notes.txt",), 'prepare what? "data.text=notes.txt" sets a value; name a'),
        (("notes.txt",), 'prepare what? "notes.txt" is a text; name a model before it'),
        (("modren",), '"modren": no such preset; see archwright list, or give a file ending in'),
        (("modern", "data.txt=notes.txt"), 'data.txt: unknown key. Did you mean "data.text"?'),
        (("modern", "data.text=note.txt"), 'data.text: no file or folder "note.txt". Did you mean'),
        (("modern", "data.text=empty.txt"), "data.text: there is no text; every file is empty."),
        (("modern", "--processes", "0"), "--processes: found 0; expected 1 or more"),
        (("modern", "--processes", "two"), '--processes: found "two"; expected a whole number'),
        (
            ("modern", "data.text=-", "--processes", "2"),
            '--processes: found 2 with the text "-"; standard input is read by one process',
        ),
    ],
)
def test_wrong_words(
    words: tuple[str, ...], line: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = error_lines(capsys, "prepare", *words)
    assert found.startswith(line)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("data.text=mqar",),
            'data.text: examples of the task "mqar" are drawn for each step; there is nothing to prepare',
        ),
        (
            ("data.pairs=synthetic", "objective.kind=sequence_to_sequence", "encoder.kind=stack"),
            "data.pairs: each run reads its pairs itself; there is nothing to prepare",
        ),
    ],
)
def test_what_has_no_text(
    words: tuple[str, ...], line: str, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    what = "t5-small" if "pairs" in words[0] else "modern"
    assert prepared(capsys, what, *words) == [line]
    assert not (cache / "tokens").exists()


def test_a_process_that_dies_is_done_without(
    text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(run: RunSpec, threads: int) -> Material:
        time.sleep(3)  # until the other has died as often as it is started
        return text_material(run, threads)

    monkeypatch.setattr("archwright.lab.running.local.START", "raise SystemExit(3)")
    monkeypatch.setattr("archwright.lab.running.prepare.text_material", slowly)
    words = ["prepare", "modern", f"data.text={text}", BYTES, "--processes", "2"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert len(folders(out.splitlines())) == 2
    assert err == (
        "archwright: warning: a process that was to help has ended (its process died by exit code 3, 3 times); "
        "the others did its work\n"
    )


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let processes hear Ctrl-C: a shell has those ignore it that it starts in the background, and what these start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_all_processes_end_with_the_first(
    text: Path, cache: Path, place: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    words = ("modern", f"data.text={text}", BYTES)
    store = Path(folders(prepared(capsys, *words))[0])
    shutil.rmtree(store)
    with only_one(store):  # for which all of them wait
        process = subprocess.Popen(
            command("prepare", *words, "--processes", "3"),
            cwd=place, env=surroundings(), stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        parent, children = psutil.Process(process.pid), list[psutil.Process]()
        end = time.monotonic() + PATIENCE
        while len(children) < 2 and time.monotonic() < end:
            time.sleep(0.1)
            children = parent.children()
        assert len(children) == 2
        time.sleep(1)
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE)
        assert psutil.wait_procs(children, timeout=PATIENCE)[1] == []
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert err.endswith("archwright: stopped\n")
    assert store.name not in {path.name for path in store.parent.iterdir()}
    assert folders(prepared(capsys, *words))[0] == str(store)
    assert not list(store.parent.glob(".tmp-*"))
