"""Batch jobs: those of submitit's local executor, and of programs that stand for SLURM's."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from archwright.lab.compare import compare
from archwright.lab.running import remote
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from tests.lab.fake_slurm import FakeSlurm
from tests.lab.small import (
    OPTIONS,
    events,
    few,
    finished,
    numbers,
    trained_now,
    until,
    words,
    working_in,
)
from tests.tiny import surroundings

pytest.importorskip("submitit")

LOCAL = ("--on", "slurm", "--slurm", "cluster=local", "--workers", "2")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, with a text and a study of this machine."""
    with working_in(tmp_path_factory.mktemp("slurm")) as folder:
        here = few("here", budget="200steps")
        subprocess.run(here, cwd=folder, env=surroundings(), check=True)
        yield folder


@pytest.mark.release
@pytest.mark.slow
def test_a_study_of_batch_jobs_has_the_numbers_of_one_of_this_machine(place: Path) -> None:
    far = few("far", *LOCAL, budget="200steps")
    done = subprocess.run(far, cwd=place, env=surroundings(), capture_output=True)
    assert done.returncode == 0, done.stderr
    assert numbers(place / "far") == numbers(place / "here")
    assert len(finished(place / "far-runs")) == 4
    assert {path.name for path in (place / "far").iterdir()} == {
        path.name for path in (place / "here").iterdir()
    }


@pytest.mark.release
@pytest.mark.skipif(os.name == "nt", reason="needs bash")
def test_ctrl_c_ends_batch_jobs_and_time_limits_queue_them_again_without_loss(
    place: Path, tmp_path: Path
) -> None:
    """Interrupted half-way; given again, a job reaches its time limit half-way."""
    slurm = FakeSlurm(tmp_path / "slurm")
    environment = surroundings(**slurm.variables)
    options = ("--on", "slurm", "--slurm", "partition=p", "--workers", "2")
    again, runs = few("batch", *options, budget="200steps"), place / "batch-runs"
    with subprocess.Popen(
        again, cwd=place, env=environment, text=True, stderr=subprocess.PIPE
    ) as process:
        until(lambda: trained_now(runs), process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGINT
    assert "--on slurm --workers 2 --slurm partition=p" in said
    assert slurm.living() == []
    assert not any(RunFolder(run).holder() for run in runs.iterdir())
    with subprocess.Popen(again, cwd=place, env=environment, text=True) as process:
        until(lambda: trained_now(runs), process)
        run = trained_now(runs)[0]
        before, holder = events(run), run.holder()
        assert holder
        slurm.time_is_up(holder.pid)
        assert process.wait(300) == 0
    assert events(run) == [*before, "stopped", "resumed", "finished"]
    assert numbers(place / "batch") == numbers(place / "here")
    assert all("#SBATCH --partition=p\n" in script for script in slurm.scripts())
    assert all("#SBATCH --cpus-per-task=1\n" in script for script in slurm.scripts())
    assert not (place / "batch" / "jobs").exists()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSlurm]:
    found = FakeSlurm(tmp_path / "slurm")
    for name, value in found.variables.items():
        monkeypatch.setenv(name, value)
    with working_in(tmp_path):
        yield found


def refused(place: Path, slurm: str = "") -> str:
    """Return the line by which a study is refused, of which nothing may be left."""
    given = words("text.txt", ":norm.kind=layer")
    with pytest.raises(UserError) as error:
        compare(*given, quiet=True, on="slurm", slurm=slurm, out="study", **OPTIONS)
    assert not (place / "study").exists()
    [line] = error.value.lines
    return line


@pytest.mark.skipif(os.name == "nt", reason="needs bash")
def test_what_sbatch_says_is_said_again(slurm: FakeSlurm, tmp_path: Path) -> None:
    said = ["sbatch: unrecognized option '--partitoin=gpu'", "Try 'sbatch --help' for more"]
    (slurm.folder / "refuse").write_text("\n".join(said))
    assert refused(tmp_path, "partitoin=gpu") == (
        f"--on slurm: sbatch does not take the job: {'; '.join(said)}"
    )


@pytest.mark.skipif(os.name == "nt", reason="needs bash")
def test_a_machine_without_archwright_ends_the_study(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "UNWRITTEN", 0.0)
    why = "ModuleNotFoundError: No module named 'archwright'"
    (slurm.folder / "break").write_text(f"Traceback\n{why}\n")
    line = refused(tmp_path)
    assert line == f"--on slurm: batch job 1 ended as FAILED before it began: {why}"
    assert all(" -P -u -m submitit" in script for script in slurm.scripts()), (
        "no folder is imported"
    )


def test_a_machine_without_slurm(slurm: FakeSlurm, tmp_path: Path) -> None:
    (slurm.folder / "bin" / "sbatch").unlink()
    assert refused(tmp_path).startswith(
        "--on slurm: there is no sbatch on the PATH: start the study"
    )
