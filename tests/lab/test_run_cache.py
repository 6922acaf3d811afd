"""A run's name holds all that decides its numbers, and nothing else."""

import ast
import math
from pathlib import Path

import pytest

from archwright.lab import run_cache
from archwright.runs import RunFolder
from archwright.training.data import Material, prepare_data
from tests.tiny import tiny_run, write_text


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    folder = tmp_path_factory.mktemp("pool")
    text = write_text(folder / "text.txt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHWRIGHT_CACHE", str(folder / "cache"))
        return prepare_data(tiny_run(text), RunFolder(folder))


CHANGES = (
    "seed=1",
    "optimizer.lr=0.5",
    "model.norm.kind=layer",
    "machine.kernel=eager",
    "machine.precision=bf16",
    "machine.threads=2",
    "machine.num_steps=7",
    "evaluate.final_max_tokens=9",
    "schedule.kind=linear",
)


def test_every_change_of_what_decides_gives_another_name(material: Material) -> None:
    run = tiny_run("text.txt")
    keys = [run_cache.key(run, material)]
    keys += [run_cache.key(run.override(change), material) for change in CHANGES]
    assert len(set(keys)) == len(keys)


def test_what_a_run_is_called_does_not_matter(material: Material) -> None:
    run = tiny_run("text.txt")
    assert run_cache.key(run.override("name=other", "model.name=x"), material) == run_cache.key(
        run, material
    )


def test_other_text_gives_another_name(
    material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(tmp_path / "cache"))
    run = tiny_run(write_text(tmp_path / "text.txt", 401))
    assert run_cache.key(run, prepare_data(run, RunFolder(tmp_path / "r"))) != run_cache.key(
        run, material
    )


def test_other_code_gives_another_name(material: Material, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run("text.txt")
    before = run_cache.key(run, material)
    monkeypatch.setattr(run_cache, "code_version", lambda: "0123456789abcdef")
    assert run_cache.key(run, material) != before


PROGRAM = '''
"""What it is for."""
def f(x):
    """What it does."""
    return x + 1  # why
'''


@pytest.mark.parametrize(
    "same",
    [
        PROGRAM.replace("why", "other"),
        PROGRAM.replace("What it is for", "Other"),
        PROGRAM.replace("What it does", "Other"),
        PROGRAM.replace("x + 1", "(x+1)"),
    ],
)
def test_comments_docstrings_and_layout_are_no_code(same: str) -> None:
    assert run_cache._meaning(same) == run_cache._meaning(PROGRAM)


@pytest.mark.parametrize(
    "other", [PROGRAM.replace("x + 1", "x + 2"), PROGRAM.replace("f(x)", "g(x)")]
)
def test_other_code_is_other_code(other: str) -> None:
    assert run_cache._meaning(other) != run_cache._meaning(PROGRAM)


def test_a_body_of_words_alone_is_left_as_a_program() -> None:
    assert ast.dump(ast.parse("class A:\n    pass")) != ""
    assert run_cache._meaning('class A:\n    """x"""') == run_cache._meaning(
        'class A:\n    """y"""'
    )


def test_what_has_not_ended_has_no_outcome(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", tiny_run("text.txt"))
    assert run_cache.outcome(folder) == ""
    for name, outcome in (
        ("started", ""),
        ("stopped", ""),
        (run_cache.DIVERGED, run_cache.DIVERGED),
        ("resumed", ""),
        ("finished", "finished"),
    ):
        folder.append({"kind": "event", "step": 0, "name": name})
        assert run_cache.outcome(folder) == outcome


def test_a_failure_has_no_numbers() -> None:
    failed = run_cache.failure("a", 1, 0.1, "key", "no memory", "archwright train a")
    assert math.isnan(failed.loss)
    assert failed.failed == "no memory"
