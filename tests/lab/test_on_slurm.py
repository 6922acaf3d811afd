"""Batch jobs: those of submitit's local executor, and of programs that stand for SLURM's."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.small import few, finished, numbers, working_in
from tests.tiny import surroundings

pytest.importorskip("submitit")

LOCAL = ("--on", "slurm", "--slurm", "cluster=local", "--workers", "2")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, with a text and a study of this machine."""
    with working_in(tmp_path_factory.mktemp("slurm")) as folder:
        subprocess.run(few("here"), cwd=folder, env=surroundings(), check=True)
        yield folder


@pytest.mark.slow
def test_a_study_of_batch_jobs_has_the_numbers_of_one_of_this_machine(place: Path) -> None:
    done = subprocess.run(few("far", *LOCAL), cwd=place, env=surroundings(), capture_output=True)
    assert done.returncode == 0, done.stderr
    assert numbers(place / "far") == numbers(place / "here")
    assert len(finished(place / "far-runs")) == 4
    assert {path.name for path in (place / "far").iterdir()} == {
        path.name for path in (place / "here").iterdir()
    }
