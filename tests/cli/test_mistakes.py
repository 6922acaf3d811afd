"""What a user gets wrong: one clear line for each mistake, exit code 2, and nothing made or lost."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import archwright as aw
from archwright.cli import main
from archwright.runs import RunFolder
from tests.tiny import MACHINE, SHAPE, archwright, tiny_run, tiny_words, write_text

TRAIN = f"train modern data.text=notes.txt {' '.join((*SHAPE, *MACHINE))} budget=3steps"
BUDGET = 'expected an amount with a unit, such as "3m", "400steps", "10Mtokens" or "1e15flops"'
NORMS = 'expected one of "layer", "none", "rms"'
CHOICE = """\
from typing import Literal
from archwright.spec.norms import Norm
class Mine(Norm):
    kind: Literal["{kind}"] = "{kind}"
"""

FILES: dict[str, str | bytes] = {
    "notes.txt": "the model and the token\n" * 300,
    "empty.txt": "",
    "tiny.txt": "hello world",
    "picture.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * 4,
    "latin.txt": "the café of words\n".encode("latin-1") * 50,
    "utf16.txt": ("hello " * 100).encode("utf-16"),
    "field.jsonl": '{"body": "a text"}\n' * 20,
    "broken.jsonl": '{"text": "a text"}\n{"text": oops}\n',
    "broken.toml": "dim = = 3\n",
    "latin.toml": 'name = "café"\n'.encode("latin-1"),
    "wrong.toml": 'dim = "wide"\nnum_layres = 3\nnorm.kind = "rsm"\nattention.num_heads = 0\n',
    "shape.toml": 'base = "modern"\ndim = 100\nattention.num_heads = 8\nattention.num_kv_heads = 3\n',
    "run.toml": 'model = "modern"\nbudget = "soon"\nbatch_size = 0\noptimizer.kind = "adam"\n',
    "tok.json": "{}",
    "raises.py": "import archwright\n\nx = 1 / 0\n",
    "syntax.py": "def f(:\n",
    "clash.py": CHOICE.format(kind="rms"),
    "partless.py": CHOICE.format(kind="partless"),
    "choiceless.py": "x = 3\n",
}

MISTAKES: dict[str, list[str]] = {
    # verbs, options and names
    "trian demo": [
        '"trian": no such verb; there are train, generate, eval, report, list, show, diff, schema, '
        'check. Did you mean "train"?'
    ],
    "train": ["train what? Name a recipe, a model or a TOML file, such as: archwright train demo"],
    "train model.dim=64": [
        'train what? "model.dim=64" sets a value; name a recipe or model before it'
    ],
    "train notes.txt": [
        'train what? "notes.txt" is a text; name a model before it: '
        "archwright train modern data.text=notes.txt"
    ],
    "train modren": [
        '"modren": no such preset; there are demo, modern, textbook, or give a file ending in '
        '.toml. Did you mean "modern"?'
    ],
    "train none.toml": ["none.toml: no such file"],
    "train modern --budget 3m": [
        "--budget 3m: no such option; values are set as key=value, without dashes. "
        "See archwright train --help"
    ],
    "train modern --resume runs/demo": [
        "--resume takes the run as it was begun: leave out other words, --out and --dry-run"
    ],
    "list choises": [
        'list "choises": expected one of models, recipes, choices, runs. Did you mean "choices"?'
    ],
    "show": ["the following arguments are required: MODEL. See archwright show --help"],
    "show demo": [
        '"demo" is a recipe, not a model; see it with: archwright train demo --dry-run'
    ],
    "diff modern textbok": [
        '"textbok": no such preset; there are modern, textbook, or give a file ending in .toml. '
        'Did you mean "textbook"?'
    ],
    "schema models": ['schema "models": expected model or run. Did you mean "model"?'],
    # keys and values
    "train modern dim=256": ['dim: unknown key. Did you mean "model.dim"?'],
    "train modern optimiser.lr=1": [
        'optimiser.lr: unknown key. Did you mean "optimizer.lr"?'
    ],
    "train modern model.norm.kind=rsm": [
        f'model.norm.kind: found "rsm"; {NORMS}. Did you mean "rms"?'
    ],
    "train modern model.dim=big": ['model.dim: found "big"; expected a whole number'],
    "train modern model.dim=2.5": ["model.dim: found 2.5; expected a whole number"],
    "train modern model.dim=-8": ["model.dim: found -8; expected at least 1"],
    "train modern model.dim=64 model.dim=128": ["model.dim: given twice, as 64 and as 128"],
    "train modern batch_size=0": ["batch_size: found 0; expected at least 1"],
    "train modern budget=3": [f"budget: found 3; {BUDGET}"],
    "train modern budget=soon": [f'budget: found "soon"; {BUDGET}'],
    "train modern words": ['"words": expected key=value, such as model.dim=256'],
    "train modern modle.dim=2 batch_size=two seed=-1 budget=forever": [
        'modle.dim: unknown key. Did you mean "model.dim"?',
        'batch_size: found "two"; expected a whole number',
        f'budget: found "forever"; {BUDGET}',
        "seed: found -1; expected at least 0",
    ],
    # shapes and sizes
    "train modern model.dim=100 model.attention.num_heads=8 model.attention.num_kv_heads=3": [
        "model.attention.num_kv_heads: found 3; expected a divisor of num_heads = 8",
        "model.attention.num_heads: found 8; expected a divisor of dim = 100, or a given "
        "attention.head_dim",
    ],
    "train modern accumulate=99": [
        "accumulate: found 99; expected at most batch_size = 16, as each part of a batch needs a row"
    ],
    f"{TRAIN} model.vocab_size=128": [
        "model.vocab_size: found 128; expected at least 257, the size of the tokenizer, or \"auto\""
    ],
    # files of specs
    "train broken.toml": ["broken.toml: not TOML: Invalid value (at line 1, column 7)"],
    "check wrong.toml broken.toml latin.toml shape.toml run.toml": [
        "wrong.toml: num_layres: unknown option; accepted: norm, residual, position, attention, "
        "feedforward, num_layers, layer_kinds, layers, name, source, sources, dim, vocab_size, "
        'context_length, embedding, head, init, encoder. Did you mean "num_layers"?',
        f'wrong.toml: norm.kind: found "rsm"; {NORMS}. Did you mean "rms"?',
        'wrong.toml: attention.num_heads: found 0; expected at least 1 or "auto"',
        'wrong.toml: dim: found "wide"; expected a whole number',
        "broken.toml: not TOML: Invalid value (at line 1, column 7)",
        "latin.toml: not UTF-8 at byte 11; expected a TOML file",
        "shape.toml: attention.num_kv_heads: found 3; expected a divisor of num_heads = 8",
        "shape.toml: attention.num_heads: found 8; expected a divisor of dim = 100, or a given "
        "attention.head_dim",
        "run.toml: batch_size: found 0; expected at least 1",
        f'run.toml: budget: found "soon"; {BUDGET}',
        'run.toml: optimizer.kind: found "adam"; expected one of "adamw", "muon". '
        'Did you mean "adamw"?',
    ],
    # texts
    "train modern data.text=note.txt": [
        'data.text: no file or folder "note.txt". Did you mean "notes.txt"?'
    ],
    "train modern data.text=picture.png": [
        'data.text: "picture.png" is a binary file (a zero at byte 8). Give a text file in UTF-8.'
    ],
    "train modern data.text=utf16.txt": [
        'data.text: "utf16.txt" is UTF-16, not UTF-8. Give a text file in UTF-8.'
    ],
    "train modern data.text=latin.txt": [
        'data.text: "latin.txt" is not UTF-8 at byte 7 (0xe9). Convert it, or set '
        "data.errors=replace to read such bytes as \ufffd."
    ],
    "train modern data.text=empty.txt": ["data.text: there is no text; every file is empty."],
    "train modern data.text=tiny.txt data.tokenizer.kind=bytes": [
        "data.text: the text is too short: 257 tokens are needed (model.context_length + 1), there "
        "are 10. Give more text, or set model.context_length to 9 or less."
    ],
    "train modern data.text=*.md": [
        'data.text: no file found in "*.md". Name a file, a folder or a glob with text.'
    ],
    "train modern data.text=['a.txt','b.txt']": [
        'data.text: no file or folder "a.txt". Did you mean "latin.txt"?',
        'data.text: no file or folder "b.txt". Did you mean "tiny.txt"?',
    ],
    "train modern data.text=field.jsonl": [
        'data.text: "field.jsonl" line 1: no field "text" (found "body"). Set data.field.'
    ],
    "train modern data.text=broken.jsonl": [
        'data.text: "broken.jsonl" line 2 is not JSON: Expecting value at column 10.'
    ],
    # tokenizers
    "train modern data.text=notes.txt data.tokenizer.kind=file": [
        'data.tokenizer.path: found nothing; data.tokenizer.kind = "file" expects the path of a '
        "tokenizer.json"
    ],
    "train modern data.text=notes.txt data.tokenizer.kind=file data.tokenizer.path=tik.json": [
        'data.tokenizer.path: there is no file "tik.json". Did you mean "tok.json"?'
    ],
    "train modern data.text=notes.txt data.tokenizer.kind=file data.tokenizer.path=tok.json": [
        '"tok.json" is not a tokenizer.json: Model missing. at line 1 column 2.'
    ],
    "train modern data.text=notes.txt data.tokenizer.path=tok.json": [
        'data.tokenizer.path: given beside data.tokenizer.kind = "bpe", which reads no file; '
        'expected kind = "file"'
    ],
    # machines
    f"{TRAIN} machine.device=gpu": [
        'machine.device: found "gpu"; expected "auto", "cpu" or "cuda"'
    ],
    f"{TRAIN.replace('precision=fp32', 'precision=fp16')} machine.device=cpu": [
        'machine.precision: found "fp16", which needs a GPU; expected "bf16" or "fp32"'
    ],
    # folders
    "train --resume runs/none": [
        "runs/none is not a run folder: it has no spec.toml."
    ],
    f"{TRAIN} --out notes.txt": ["notes.txt is a file; --out must name a folder."],
    f"{TRAIN} --out .": [
        ". is not a run folder and not empty: it holds broken.jsonl and 18 more. "
        "Give --out a new or empty folder."
    ],
    f"{TRAIN} init.from=runs/base": [
        "init.from: runs/base is no folder; expected a run folder or one with model.safetensors"
    ],
    "generate notes.txt": ["notes.txt is not a run folder: it has no spec.toml."],
    # choices from outside
    "train modern --parts none.py": [
        "--parts none.py: cannot be read: No such file or directory"
    ],
    "train modern --parts raises.py": [
        "--parts raises.py, line 3: ZeroDivisionError: division by zero"
    ],
    "train modern --parts syntax.py": ["--parts syntax.py, line 1: SyntaxError: invalid syntax"],
    "list choices --parts clash.py": [
        '--parts clash.py, line 3: ValueError: norm.kind = "rms" is taken by '
        "archwright.spec.norms.RMSNorm; give Mine another kind"
    ],
    "train modern --parts partless.py": [
        "--parts partless.py: Mine has no part; end the file with archwright.register(Mine, ...) "
        "and the module that computes it"
    ],
    "check wrong.toml --parts choiceless.py --parts none.py": [
        "--parts choiceless.py: no choice is in it; see CONTRIBUTING.md, Adding a choice",
        "--parts none.py: cannot be read: No such file or directory",
    ],
}  # fmt: skip


@pytest.fixture
def files(place: Path) -> Path:
    for name, content in FILES.items():
        data = content.encode() if isinstance(content, str) else content
        (place / name).write_bytes(data)
    return place


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> list[str]:
    """Type a command; return the lines on standard error, without the name at their beginning."""
    found = main(words)
    out, err = capsys.readouterr()
    assert found == code, err
    assert "Traceback" not in out + err
    lines = err.splitlines()
    assert all(line.startswith("archwright: ") for line in lines), err
    return [line.removeprefix("archwright: ") for line in lines]


@pytest.mark.usefixtures("visitors")
@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake(words: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(files)
    assert said(capsys, *words.split()) == MISTAKES[words]
    assert contents(files) == before


@pytest.mark.skipif(
    "torch" in sys.modules and __import__("torch").cuda.is_available(), reason="GPU"
)
def test_a_gpu_that_is_not_here(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(capsys, *f"{TRAIN} machine.device=cuda".split())
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
    found = [x for x in said(capsys, *words, change) if not x.startswith("warning: ")]
    assert len(found) == 1
    assert found[0].startswith(line)
    assert "this machine has" in found[0]
    assert not (files / "runs").exists()


def test_the_process_ends_with_2_and_lines_on_standard_error(files: Path) -> None:
    done = archwright("train", "modern", "data.text=note.txt", "--out", "here", cwd=files)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        'archwright: data.text: no file or folder "note.txt". Did you mean "notes.txt"?\n'
    )


def test_the_corrected_command_works(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing that a mistake leaves is in its way."""
    assert said(capsys, *TRAIN.replace("notes.txt", "note.txt").split())
    assert not (files / "runs").exists()
    assert said(capsys, *TRAIN.split(), "--quiet", code=0) == []
    assert RunFolder.open("runs/modern").finished


# What is there already ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, with a checkpoint that another process could go on from."""
    folder = tmp_path_factory.mktemp("trained")
    text = write_text(folder / "text.txt", 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHWRIGHT_CACHE", str(folder / "cache"))
        patch.setattr("archwright.training.finish.stream", lambda *_, **__: stream_of_nothing())
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
    import shutil

    shutil.copytree(trained / "run", place / "run")
    shutil.copytree(trained / "cache", cache, dirs_exist_ok=True)
    folder = RunFolder(place / "run")
    folder.cut_back(2)
    folder.model_file.unlink()
    return folder.path


def same_run(trained: Path, *changes: str) -> list[str]:
    few = ("evaluate.max_tokens=50", "evaluate.final_max_tokens=50", "checkpoint.every=1")
    return tiny_words(trained / "text.txt", "budget=3steps", *few, *changes)


def test_another_spec(run: Path, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(capsys, *same_run(trained, "seed=1", "machine.threads=2"), "--out", str(run))
    assert line == (
        f"{run} holds another run (seed: 0 -> 1). "
        f"Train with another --out, or go on with the run there: --resume {run}"
    )


def test_what_the_machine_decided_stays(
    run: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is no mistake, but must not pass in silence."""
    assert main([*same_run(trained, "machine.threads=2"), "--out", str(run)]) == 0
    warning = capsys.readouterr().err.splitlines()[0]
    assert warning == (
        "archwright: warning: machine.threads: 2 is too late, the run was begun with 1 and goes on "
        "so"
    )


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
        (["--temperature", "-1"], ["--temperature: found -1.0; expected 0 (the likeliest token) or more"]),
        (
            ["--temperature", "nan", "--top-k", "-2", "--max-tokens", "-3"],
            [
                "--max-tokens: found -3; expected 0 or more",
                "--temperature: found nan; expected 0 (the likeliest token) or more",
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
            ["argument --temperature: invalid float value: 'hot'. See archwright generate --help"],
        ),
    ],
)  # fmt: skip
def test_settings_of_generate(
    options: list[str], lines: list[str], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "generate", str(run), *options) == lines


def test_a_run_without_weights(unfinished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(unfinished)
    folder.cut_back(-1)
    assert said(capsys, "generate", "run") == [
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
        ("", ["the following arguments are required: --text. See archwright eval --help"]),
    ],
)  # fmt: skip
def test_texts_of_eval(
    words: str, lines: list[str], run: Path, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "eval", str(run), *words.split()) == lines


def test_a_text_that_changed(
    unfinished: Path, trained: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tokens are gone, too, or they would be taken."""
    import shutil

    shutil.rmtree(cache / "tokens")
    environment = RunFolder(unfinished).environment()
    for side in ("train", "held_out"):
        environment["data"][side]["store"] = str(cache / "gone")
    RunFolder(unfinished).write_environment(environment)
    kept = (trained / "text.txt").read_text()
    (trained / "text.txt").write_text(kept + "more\n")
    try:
        assert said(capsys, "train", "--resume", "run") == [
            "run: the text has changed since this run began; bring the old text back, or train "
            "anew with another --out"
        ]
    finally:
        (trained / "text.txt").write_text(kept)


def test_damaged_checkpoints(unfinished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = RunFolder(unfinished).checkpoints()
    for path in steps.values():
        (path / "model.safetensors").write_bytes(b"damaged")
    before = contents(unfinished)
    lines = said(capsys, "train", "--resume", "run", "--quiet")
    assert len(lines) == len(steps) + 1
    assert all("is damaged: 7 bytes instead of" in line for line in lines[:-1])
    assert "is whole. To start anew, remove that folder" in lines[-1]
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
    assert err.startswith("archwright: warning: run/metrics.jsonl: 1 damaged lines are left out")


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


def test_a_full_disk(trained: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It fills up in the middle of the run; with space made, the same command goes on."""
    with disk(place, 1500) as folder:
        ballast = folder / "ballast"
        ballast.write_bytes(b"x" * 500_000)
        words = [*same_run(trained, "budget=30steps", "checkpoint.keep=9"), "--quiet"]
        (line,) = said(capsys, *words, "--out", "disk/run")
        assert "cannot be written: No space left on device" in line
        assert "Free some space, or choose another folder." in line
        run = RunFolder(folder / "run")
        reached = max(run.checkpoints())
        assert 0 < reached < 30
        ballast.unlink()
        subprocess.run(["mount", "-o", "remount,size=20M", str(folder)], check=True)
        assert said(capsys, *words, "--out", "disk/run", code=0) == []
        steps = [r["step"] for r in run.metrics() if r["kind"] == "train"]
        assert steps == list(range(1, 31))


def test_a_disk_that_is_full_from_the_start(
    trained: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with disk(place, 100) as folder:
        (folder / "ballast").write_bytes(b"x" * 98_000)
        before = contents(folder)
        (line,) = said(capsys, *same_run(trained), "--out", "disk/run")
        assert line.startswith("disk/run")
        assert "cannot be written: No space left on device" in line
        assert contents(folder) == before


def test_a_full_cache(
    trained: Path, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with disk(place, 20) as folder:
        monkeypatch.setenv("ARCHWRIGHT_CACHE", str(folder / "cache"))
        (line,) = said(capsys, *same_run(trained), "--out", "run")
        assert "the disk is full. Free some space, or set ARCHWRIGHT_CACHE" in line
        assert not (place / "run").exists()


def test_a_read_only_folder(trained: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with disk(place, 100) as folder:
        read_only(folder)
        (line,) = said(capsys, *same_run(trained), "--out", "disk/run")
        assert line == (
            "disk/run cannot be written: Read-only file system. "
            "Choose a folder that you may write to."
        )


def test_a_run_on_a_read_only_disk(
    unfinished: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    with disk(place, 20_000) as folder:
        shutil.copytree(unfinished, folder / "run")
        read_only(folder)
        for words in ("train --resume disk/run", "report disk/run"):
            (line,) = said(capsys, *words.split())
            assert line.startswith("disk/run/")
            assert "cannot be written: Read-only file system." in line
        assert said(capsys, "generate", "disk/run", "--max-tokens", "3", code=0) == []
