"""Several processes beside one: the same steps, the same files, and what becomes of a run whose processes die."""

import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import torch

import archwright
from archwright import checkpoint
from archwright.machine.compiling import has_compiler
from archwright.runs import RunFolder
from archwright.spec.run_spec import RunSpec
from bench.scale import MODELS, Case, environment, of_processes, title, torchrun, trained
from tests.scale.together import LOSSES, NORMS, assert_close, events, gone_back, values
from tests.scale.together import trained as trained_by
from tests.tiny import ROOT, tiny_run, tiny_words

pytestmark = pytest.mark.slow

STEPS = 4
GRIDS = ((2, 1), (1, 2))
ROWS = (
    "modern, Muon, two microbatches, chunked loss",
    "deepseek-v3 (moving router bias)",
    "t5-small, GELU",
)
"""Both optimizers, both losses, accumulation, balance, a bias that follows loads, two stacks, shared tables."""
NUM_STEPS, EVERY = 60, 15


@pytest.fixture(scope="module")
def rows(text: Path) -> list[Case]:
    return [Case(name, MODELS[name], str(text)) for name in ROWS]


@pytest.fixture(scope="module")
def narrow(text: Path) -> Case:
    return Case("bf16", ("modern", "machine.precision=bf16"), str(text))


@pytest.fixture(scope="module")
def many(rows: list[Case], narrow: Case) -> dict[str, list[list[float]]]:
    return of_processes(2, [*rows, narrow], STEPS, GRIDS)


@pytest.mark.parametrize("number", range(len(ROWS)), ids=ROWS)
def test_steps_are_those_of_one_process(
    number: int, rows: list[Case], many: dict[str, list[list[float]]]
) -> None:
    """Losses to 5e-6; norms to what one process rounds off, which adds up whole matrices in float32."""
    one = trained(rows[number], STEPS)
    assert abs(one[-1][0] - one[0][0]) > 0.05, "weights move"
    assert max(norm for _, norm in one) > 1, "some are clipped"
    for grid in GRIDS:
        found = many[f"{rows[number].name}/{title(grid)}"]
        for (loss, norm), (expected, expected_norm) in zip(found, one, strict=True):
            assert loss == pytest.approx(expected, abs=5e-6)
            assert norm == pytest.approx(expected_norm, rel=1e-4)


def test_steps_in_bf16_are_those_of_one_process(
    narrow: Case, many: dict[str, list[list[float]]]
) -> None:
    """The first loss, whose products are the same, to float32's rounding; later ones to what gradients are rounded to,
    which one process adds up over rows before it narrows them."""
    one, wide = (trained(each, STEPS) for each in (narrow, narrow._replace(words=narrow.words[:1])))
    # Of one step the mean may be the same by chance.
    assert max(abs(a - b) for (a, _), (b, _) in zip(one, wide, strict=True)) > 1e-5, (
        "products are narrow"
    )
    for grid in GRIDS:
        found = many[f"{narrow.name}/{title(grid)}"]
        assert found[0][0] == pytest.approx(one[0][0], abs=1e-6)
        for (loss, norm), (expected, expected_norm) in zip(found, one, strict=True):
            assert loss == pytest.approx(expected, abs=1e-3)
            assert norm == pytest.approx(expected_norm, rel=1e-2)


@pytest.mark.release
@pytest.mark.skipif(not has_compiler(), reason="compiling for a CPU needs a C++ compiler")
def test_compiled_layers_train_as_those_of_one_process_do(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the compiler itself, in both processes: each compiles the layers before they are sharded."""
    words = ("budget=4steps", "evaluate.final_max_tokens=300")
    one = archwright.train(tiny_run(text, *words), out=tmp_path / "one", quiet=True).folder
    compiled = tmp_path / "compiled"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(compiled))
    words = (*words, "machine.compile=block")
    two = trained_by(2, tmp_path / "two", *tiny_words(text, *words))
    assert [*compiled.rglob("*.so")], "something was compiled"
    assert two.spec.machine.compile == "block"
    for kind, key in (*LOSSES, NORMS):
        assert values(two, kind, key) == pytest.approx(values(one, kind, key), rel=1e-5)


class StopHere(Exception):  # noqa: N818
    """Ends a run in the middle."""


@pytest.fixture(scope="module")
def run(text: Path) -> RunSpec:
    return tiny_run(
        text,
        f"budget={NUM_STEPS}steps",
        f"checkpoint.every={EVERY}",
        "checkpoint.keep=9",
        "evaluate.every=30",
        "evaluate.max_tokens=900",
        "evaluate.final_max_tokens=900",
        "optimizer.kind=muon",
        "model.norm.kind=dyt",  # with numbers, which FSDP2 leaves alone
    )


@pytest.fixture(scope="module")
def whole(run: RunSpec, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run of one process."""
    return archwright.train(run, out=tmp_path_factory.mktemp("whole") / "run", quiet=True).folder


@pytest.fixture(scope="module")
def shared(run: RunSpec, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, str, int]:
    """A run that one process began and two went on with, of which one was killed; its folder, what was printed on
    standard error, and torchrun's exit code."""
    path = tmp_path_factory.mktemp("shared") / "run"

    def stop(record: dict[str, object]) -> None:
        if record["step"] == 3:
            raise StopHere

    with pytest.raises(StopHere):
        archwright.train(run, out=path, quiet=True, on_step=stop)
    command = [*torchrun(2), "--max-restarts=1", "-m", "archwright", "train", "--resume", str(path)]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        assert kill_second(process, path / "checkpoints" / f"step-{EVERY}")
        _, err = process.communicate(timeout=120)
    return RunFolder(path), err.decode(), process.returncode


def kill_second(process: "subprocess.Popen[bytes]", after: Path) -> bool:
    """Kill the second process of torchrun once a checkpoint is there."""
    while process.poll() is None and not after.exists():
        time.sleep(0.005)
    return send(process, 1, signal.SIGKILL)


def send(process: "subprocess.Popen[bytes]", rank: int, number: signal.Signals) -> bool:
    """Send a signal to one of torchrun's processes, if it is there."""
    for child in psutil.Process(process.pid).children(recursive=True):
        if child.environ().get("RANK") == str(rank):
            child.send_signal(number)
            return True
    return False


@pytest.mark.parametrize(
    ("rank", "scale"), [(0, "scale.shard=2"), (1, "scale.shard=2"), (1, "scale.tensor=2")]
)
def test_sigterm_to_any_process_saves_the_run(
    rank: int, scale: str, text: Path, tmp_path: Path
) -> None:
    """A machine without the first process may be drained alone. A tensor group counts the sums of one process."""
    folder = RunFolder(tmp_path / "run")
    words = tiny_words(text, "budget=100000steps", "model.attention.num_kv_heads=2", scale)
    long = ("evaluate.every=1000000", "checkpoint.every=1000000", "--out", str(folder.path))
    command = [*torchrun(2), "-m", "archwright", *words, *long]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        while process.poll() is None and len(values(folder, "train", "step")) < 3:
            time.sleep(0.05)
        try:
            assert send(process, rank, signal.SIGTERM)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()  # with which its processes end, where none has heard the signal
    assert process.returncode == 1, err
    (last,) = folder.checkpoints()
    assert values(folder, "train", "step") == [*range(1, last + 1)]
    assert events(folder)[-1] == ("stopped", last)
    assert folder.metrics()[-1]["text"] == "by SIGTERM"
    assert err.decode().count(f"archwright: stopped at step {last} and saved") == 1, err


def test_a_killed_process_costs_what_came_since_the_last_checkpoint(
    shared: tuple[RunFolder, str, int],
) -> None:
    folder, err, code = shared
    assert code == 0
    happened = events(folder)
    resumed = [step for name, step in happened if name == "resumed"]
    assert resumed[0] == 3
    assert resumed[1] % EVERY == 0 < resumed[1], "it goes on from a checkpoint of two processes"
    assert happened[-1] == ("finished", NUM_STEPS)
    assert err.count("a process of this run has ended") == 1, err
    left = [
        p for p in psutil.process_iter(["cmdline"]) if str(folder.path) in (p.info["cmdline"] or [])
    ]
    assert left == []


def printed_by_two(script: Path) -> list[str]:
    """Return the lines that two processes of a script print, in order of the alphabet; both end well.

    Each prints a line at once, with its end: else the other's may come between.
    """
    done = subprocess.run(
        [*torchrun(2), str(script)],
        cwd=script.parent,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.split("\n"))


def test_a_script_trains_one_run_after_another(text: Path, tmp_path: Path) -> None:
    """The second run is not taken for the first one by processes that have trained that."""
    script = tmp_path / "two.py"
    words = tiny_words(text, "budget=3steps")[1:]
    script.write_text(
        "import archwright\n"
        'for out in ("first", "second"):\n'
        f"    found = archwright.train(*{words!r}, out=out, quiet=True)\n"
        "    print(f'{found.folder.path.name} {found.folder.finished}\\n', end='')\n"
    )
    assert printed_by_two(script) == ["", *["first True"] * 2, *["second True"] * 2]


def test_a_script_goes_on_after_runs_that_fail(text: Path, tmp_path: Path) -> None:
    """One is refused before the others hear of it, one is ended by a callback; the others leave both, too."""
    script = tmp_path / "three.py"
    words = tiny_words(text, "budget=3steps")[1:]
    script.write_text(
        "import archwright\n"
        "from archwright.spec.errors import UserError\n"
        "def fail(record):\n"
        "    raise LookupError('mine')\n"
        'runs = {"odd": (["batch_size=3"], None), "failed": ([], fail), "third": ([], None)}\n'
        "for out, (changes, on_step) in runs.items():\n"
        "    try:\n"
        f"        found = archwright.train(*{words!r}, *changes, out=out, quiet=True, on_step=on_step)\n"
        "    except UserError as error:\n"
        "        assert 'batch_size' in str(error), error\n"
        "        print(f'{out} {len(error.lines)}\\n', end='')\n"
        "    except Exception as error:\n"
        "        assert 'mine' in str(error), error\n"
        "        print(f'{out}\\n', end='')\n"
        "    else:\n"
        "        print(f'{out} {found.folder.finished}\\n', end='')\n"
    )
    assert printed_by_two(script) == [*("", *["failed"] * 2, *["odd 1"] * 2, *["third True"] * 2)]


def test_files_are_those_of_one_process(
    shared: tuple[RunFolder, str, int], whole: RunFolder
) -> None:
    folder = shared[0]
    assert names(folder.path) == names(whole.path)
    last = f"step-{NUM_STEPS}"
    for step in ("checkpoints/" + last, "."):
        ours, theirs = (f.path / step / "model.safetensors" for f in (folder, whole))
        assert_close(ours, theirs, atol=2e-4)
    exact = checkpoint.read_model(folder.path / "checkpoints" / last / "model.safetensors")
    for name, value in checkpoint.read_model(folder.model_file).items():  # gathered, not read
        assert torch.equal(exact[name], value), name
    read = [
        json.loads((f.path / "checkpoints" / last / "state.json").read_text())
        for f in (folder, whole)
    ]
    assert read[0]["optimizers"] == read[1]["optimizers"], "names, groups and rates"


def test_records_are_those_of_one_process(
    shared: tuple[RunFolder, str, int], whole: RunFolder
) -> None:
    """The same losses, to the rounding of many steps; nothing twice though two processes trained."""
    for kind, key in (("train", "loss"), ("eval", "nats_per_token"), ("baseline", "bits_per_byte")):
        found, expected = (
            [(r["step"], r.get(key)) for r in folder.metrics() if r["kind"] == kind]
            for folder in (shared[0], whole)
        )
        assert [step for step, _ in found] == [step for step, _ in expected]
        for (_, value), (_, wanted) in zip(found, expected, strict=True):
            assert value == pytest.approx(wanted, rel=1e-4)
    (on,) = {
        r["text"].partition(" on ")[2] for r in shared[0].metrics() if r.get("name") == "resumed"
    }
    assert on == "2 processes, scale.replicate = 1, scale.shard = 2"


def test_one_process_goes_on_with_what_two_saved(
    shared: tuple[RunFolder, str, int], tmp_path: Path
) -> None:
    path = tmp_path / "run"
    shutil.copytree(shared[0].path, path)
    folder = gone_back(RunFolder(path), NUM_STEPS - EVERY)
    assert archwright.resume(folder, quiet=True).folder.finished
    assert_close(folder.model_file, shared[0].model_file, atol=2e-4)


def names(folder: Path) -> set[str]:
    """Return the names of all files of a run, but those of its locks; of parts, that of which they are."""
    found = {
        re.sub(r"-\d{5}-of-\d{5}", "", str(p.relative_to(folder)))
        for p in folder.rglob("*")
        if "lock" not in p.name
    }
    return {name for name in found if "step-3" not in name}
