"""What goes wrong with runs that are there, their texts, and the disks they are on."""

import contextlib
import io
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import archwright as aw
from archwright.cli import main
from archwright.runs import RunFolder
from tests.cli.typing_commands import contents, error_lines
from tests.tiny import archwright, tiny_run, tiny_words, write_text


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, with a checkpoint that another process could go on from."""
    folder = tmp_path_factory.mktemp("trained")
    text = write_text(folder / "text.txt", 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHWRIGHT_CACHE", str(folder / "cache"))
        patch.setattr("archwright.training.finalize.stream", lambda *_, **__: stream_of_nothing())
        run = tiny_run(text, "budget=3steps", "checkpoint.every=1", "evaluate.max_tokens=50")
        aw.train(run.override("evaluate.final_max_tokens=50"), out=folder / "run", quiet=True)
    return folder


def stream_of_nothing() -> Iterator[str]:
    yield ""


@pytest.fixture
def run(trained: Path) -> Iterator[Path]:
    before = contents(trained)
    yield trained / "run"
    assert contents(trained) == before, "something in the run was lost or changed"


@pytest.fixture
def unfinished(trained: Path, place: Path, cache: Path) -> Path:
    """A copy of the run as its process would have left it when it died after two steps."""
    shutil.copytree(trained / "run", place / "run")
    shutil.copytree(trained / "cache", cache, dirs_exist_ok=True)
    folder = RunFolder(place / "run")
    folder.truncate_to(2)
    folder.model_file.unlink()
    return folder.path


def same_run(trained: Path, *changes: str) -> list[str]:
    few = ("evaluate.max_tokens=50", "evaluate.final_max_tokens=50", "checkpoint.every=1")
    return tiny_words(trained / "text.txt", "budget=3steps", *few, *changes)


@pytest.mark.slow
def test_another_spec(run: Path, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = error_lines(
        capsys, *same_run(trained, "seed=1", "machine.threads=2"), "--out", str(run)
    )
    assert line == (
        f"{run} holds another run (seed: 0 -> 1). "
        f"Train with another --out, or resume the run there: --resume {run}"
    )


def test_what_a_run_began_with_stays(
    run: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is no mistake, but must not pass in silence."""
    changes = ("machine.threads=2", "probes.every=2", "loggers=csv")
    assert main([*same_run(trained, *changes), "--out", str(run)]) == 0
    ignored = ("machine.threads: 2", "1"), ("probes.every: 2", "0"), ("loggers: csv", "none")
    assert capsys.readouterr().err.splitlines()[:3] == [
        f"archwright: warning: {setting} is ignored: this run already started with {kept}"
        for setting, kept in ignored
    ]
    assert not (run / "csv").exists()


def test_final_weights_deleted_and_a_checkpoint_damaged(
    trained: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint before serves; only then is it said that nothing is left to train."""
    shutil.copytree(trained / "run", place / "run")
    folder = RunFolder(place / "run")
    folder.model_file.unlink()
    *_, newest = sorted(folder.checkpoints_folder.glob("*/model.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])
    assert main([*same_run(trained), "--out", "run"]) == 0
    damaged, finished = capsys.readouterr().err.splitlines()
    assert "is damaged: " in damaged
    assert finished == "run is finished already; its results:"


@pytest.mark.slow
def test_a_folder_in_use(unfinished: Path, place: Path) -> None:
    with RunFolder(unfinished).lock():
        done = archwright("train", "--resume", "run", cwd=place)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith("archwright: run is in use by process ")
        assert line.endswith("Wait for it, stop it, or train with another --out.")


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (["--temperature", "-1"], ["--temperature: found -1.0; expected 0 (the likeliest token), or 1e-6 to 1e6"]),
        (
            ["--temperature", "nan", "--top-k", "-2", "--max-new-tokens", "-3"],
            [
                "--max-new-tokens: found -3; expected 0 or more",
                "--temperature: found nan; expected 0 (the likeliest token), or 1e-6 to 1e6",
                "--top-k: found -2; expected 0 (all) or more",
            ],
        ),
        (
            ["--top-p", "0", "--seed", "-1"],
            [
                "--top-p: found 0.0; expected more than 0, at most 1",
                "--seed: found -1; expected 0 to 2^63 - 1",
            ],
        ),
        (
            ["--temperature", "hot"],
            ['--temperature: found "hot"; expected a number. See archwright generate --help'],
        ),
    ],
)  # fmt: skip
def test_settings_of_generate(
    options: list[str], lines: list[str], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_lines(capsys, "generate", str(run), *options) == lines


def test_a_run_without_weights(unfinished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(unfinished)
    folder.truncate_to(-1)
    assert error_lines(capsys, "generate", "run") == [
        "run has no weights yet: train it first with --resume"
    ]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("--text note.txt", ['--text: no file or folder "note.txt". Did you mean "notes.txt"?']),
        (
            "--text notes.txt picture.png",
            [
                '--text: "picture.png" is a binary file (a zero at byte 8). '
                "Give a text file in UTF-8."
            ],
        ),
        ("--text notes.txt --stride 0", ["--stride: found 0; expected 1 to 32, the context of the model"]),
        ("--text notes.txt --stride 33", ["--stride: found 33; expected 1 to 32, the context of the model"]),
    ],
)  # fmt: skip
def test_texts_of_eval(
    words: str, lines: list[str], run: Path, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_lines(capsys, "eval", str(run), *words.split()) == lines


def test_the_held_out_text_of_a_run_is_the_default(
    run: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    held_out = RunFolder(run).environment()["data"]["held_out"]
    assert found["num_bytes"] == held_out["num_bytes"]


@pytest.mark.parametrize(("given", "begins"), [(b"the model", "the model"), (b"\xff", "")])
def test_a_prompt_on_standard_input(
    given: bytes,
    begins: str,
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    words = ("generate", str(run), "--prompt", "-", "--max-new-tokens", "1")
    if begins:
        assert main(words) == 0
        assert capsys.readouterr().out.startswith(begins)
    else:
        assert error_lines(capsys, *words) == ["--prompt: standard input: not UTF-8 at byte 0"]


def test_a_text_that_changed(
    unfinished: Path, trained: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tokens are gone, too, or they would be taken."""
    shutil.rmtree(cache / "tokens")
    environment = RunFolder(unfinished).environment()
    for side in ("train", "held_out"):
        environment["data"][side]["store"] = str(cache / "gone")
    RunFolder(unfinished).write_environment(environment)
    kept = (trained / "text.txt").read_text()
    (trained / "text.txt").write_text(kept + "more\n")
    try:
        assert error_lines(capsys, "train", "--resume", "run") == [
            "run: the text or its split has changed since this run began; bring the old text or its split back, or "
            "train again with another --out"
        ]
    finally:
        (trained / "text.txt").write_text(kept)


def test_damaged_checkpoints(unfinished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = RunFolder(unfinished).checkpoints()
    for path in steps.values():
        (path / "model.safetensors").write_bytes(b"damaged")
    before = contents(unfinished)
    lines = error_lines(capsys, "train", "--resume", "run", "--quiet")
    assert len(lines) == len(steps) + 1
    assert all("is damaged: 7 bytes instead of" in line for line in lines[:-1])
    assert "are damaged. To start from scratch, remove that folder" in lines[-1]
    after = contents(unfinished)
    assert {name: after[name] for name in before if "lock" not in name} == {
        name: before[name] for name in before if "lock" not in name
    }


def test_damaged_records_are_a_warning(
    unfinished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = RunFolder(unfinished).metrics_file
    file.write_bytes(file.read_bytes() + b"\x00\x00 not a record\n")
    assert main(["report", "run"]) == 0
    err = capsys.readouterr().err
    assert err.startswith("archwright: warning: run/metrics.jsonl: line")


# Disks -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def disk(place: Path, kilobytes: int) -> Iterator[Path]:
    """A small file system of its own, where that may be mounted."""
    folder = place / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(folder)]
    try:
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("may not mount a file system")
    except FileNotFoundError:
        pytest.skip("cannot mount file systems here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def read_only(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk(trained: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It fills up in the middle of the run; with space made, the same command goes on."""
    with disk(place, 1500) as folder:
        ballast = folder / "ballast"
        ballast.write_bytes(b"x" * 500_000)
        words = [*same_run(trained, "budget=30steps", "checkpoint.keep=9"), "--quiet"]
        (line,) = error_lines(capsys, *words, "--out", "disk/run")
        assert "cannot be written: No space left on device" in line
        assert "Free some space, or choose another folder." in line
        run = RunFolder(folder / "run")
        reached = max(run.checkpoints())
        assert 0 < reached < 30
        ballast.unlink()
        subprocess.run(["mount", "-o", "remount,size=20M", str(folder)], check=True)
        assert error_lines(capsys, *words, "--out", "disk/run", code=0) == []
        steps = [r["step"] for r in run.metrics() if r["kind"] == "train"]
        assert steps == list(range(1, 31))


def test_a_full_cache(
    trained: Path, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with disk(place, 20) as folder:
        monkeypatch.setenv("ARCHWRIGHT_CACHE", str(folder / "cache"))
        (line,) = error_lines(capsys, *same_run(trained), "--out", "run")
        assert "No space left on device" in line
        assert "or set ARCHWRIGHT_CACHE to" in line
        assert not (place / "run").exists()


def test_a_read_only_folder(trained: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with disk(place, 100) as folder:
        read_only(folder)
        (line,) = error_lines(capsys, *same_run(trained), "--out", "disk/run")
        assert line == (
            "disk/run cannot be written: Read-only file system. "
            "Choose a folder that you may write to."
        )


def test_a_run_on_a_read_only_disk(
    unfinished: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with disk(place, 20_000) as folder:
        shutil.copytree(unfinished, folder / "run")
        read_only(folder)
        for words in ("train --resume disk/run", "report disk/run"):
            (line,) = error_lines(capsys, *words.split())
            assert line.startswith("disk/run/")
            assert "cannot be written: Read-only file system." in line
        words = ("generate", "disk/run", "--max-new-tokens", "3", "--quiet")
        assert error_lines(capsys, *words, code=0) == []
