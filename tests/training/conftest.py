from pathlib import Path

import pytest

from archwright.runs import RunFolder
from archwright.spec.run_spec import RunSpec
from archwright.training.data import Material, prepare_data
from archwright.training.progress import Silent
from archwright.training.resolve import resolve
from archwright.training.session import Session
from tests.tiny import tiny_run, write_text
from tests.training.whole import run_of_twelve


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a cache of its own, and works in a folder of its own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text.txt", 200)


@pytest.fixture
def run(text: Path) -> RunSpec:
    """A run of six steps that never evaluates in between."""
    return tiny_run(text, "budget=6steps", "evaluate.every=100", "evaluate.final_max_tokens=300")


@pytest.fixture
def material(run: RunSpec, tmp_path: Path) -> Material:
    return prepare_data(run, RunFolder(tmp_path / "material"))


@pytest.fixture
def session(run: RunSpec, material: Material) -> Session:
    return resolve(run, material, Silent())[0]


@pytest.fixture
def longer(text: Path) -> RunSpec:
    return run_of_twelve(text)


@pytest.fixture
def nothing_left_out() -> None:
    """For tests that look at all of a run; see `quick` where it is used."""
