"""Families and presets where archwright/classic is missing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from archwright.hf import FAMILIES, families
from archwright.spec.installed import classic_folder, preset_files
from tests.tiny import ROOT

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run Python with a copy of the package without the folder."""
    folder = tmp_path_factory.mktemp("without")
    left_out = shutil.ignore_patterns("classic", "__pycache__")
    shutil.copytree(ROOT / "archwright", folder / "archwright", ignore=left_out)
    surroundings = {**os.environ, "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1"}

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *words]
        return subprocess.run(
            command, cwd=folder, env=surroundings, capture_output=True, text=True, check=False
        )

    return run


def special_presets() -> set[str]:
    folder = classic_folder()
    assert folder is not None
    return {name for name, file in preset_files("models").items() if folder in file.parents}


def test_the_list_leaves_its_presets_out(python: Run) -> None:
    done = python("-m", "archwright", "list")
    assert not done.stderr
    names = {line.split()[0] for line in done.stdout.splitlines() if line}
    assert not names & special_presets()
    assert names >= preset_files("models").keys() - special_presets()


@pytest.mark.parametrize("preset", ["modern", "t5-base", "bert-base", "original-transformer"])
def test_other_presets_are_shown(preset: str, python: Run) -> None:
    done = python("-m", "archwright", "show", preset)
    assert done.returncode == 0
    assert done.stdout.startswith(preset)


@pytest.mark.parametrize("words", [("show", "reformer"), ("train", "longt5-base", "--dry-run")])
def test_its_presets_are_one_line(words: tuple[str, ...], python: Run) -> None:
    done = python("-m", "archwright", *words)
    assert done.returncode == 2
    assert done.stderr == (
        f"archwright: {words[1]}: a preset of archwright.classic, which is missing from this installation; "
        "reinstall archwright\n"
    )


def test_its_families_are_unknown(python: Run) -> None:
    script = """
from archwright.hf import FAMILIES, load_spec
print(*FAMILIES)
try:
    load_spec({"model_type": "longformer"})
except ValueError as error:
    print(error)
"""
    names, error = python("-c", script).stdout.splitlines()
    usual = families.families_in(families)
    assert "llama" in usual
    assert "reformer" in FAMILIES.keys() - usual.keys()
    assert names.split() == [name for name in FAMILIES if name in usual]
    assert error == (
        f"config.json: model_type: found 'longformer'; expected one of {len(usual)} families "
        '(see archwright list families). Did you mean "roformer"?'
    )
