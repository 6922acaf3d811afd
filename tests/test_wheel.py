"""The wheel that users install: it has every file of the package, and its command works without the checkout."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tiny import MACHINE, ROOT, SHAPE

pytestmark = pytest.mark.release

NOT_BUILT = ("__pycache__",)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the checkout, built with the setuptools that is here."""
    source, made = (tmp_path_factory.mktemp(name) for name in ("source", "wheel"))
    for path in [ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE")]:
        (source / path.name).write_bytes(path.read_bytes())
    for path in _package_files():
        copy = source / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / path).read_bytes())
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    _run([sys.executable, "-m", "pip", *words, "--wheel-dir", str(made), str(source)], made)
    (file,) = made.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, which finds other packages where this process does."""
    path = tmp_path_factory.mktemp("environment")
    _run([sys.executable, "-m", "venv", "--without-pip", str(path)], path)
    (packages,) = path.glob("**/site-packages")
    python = str(path / "bin" / "python")
    words = ["--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    _run([sys.executable, "-m", "pip", *words, str(wheel)], path)
    # Behind its own packages, and without the .pth file by which a checkout may be installed there.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return path


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if "dist-info" not in name}
    assert names == {path.as_posix() for path in _package_files()}


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        text = archive.read(name).decode()
        licences = [name for name in archive.namelist() if name.endswith("/LICENSE")]
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    assert version
    assert f"Version: {version[1]}\n" in text
    assert "License-Expression: Apache-2.0\n" in text
    assert len(licences) == 1


def test_the_installed_command_works(environment: Path, tmp_path: Path) -> None:
    command = str(environment / "bin" / "archwright")
    place = "import archwright; print(archwright.__file__)"
    found = _run([str(environment / "bin" / "python"), "-c", place], tmp_path)
    assert Path(found.strip()).is_relative_to(environment)
    assert _run([command, "--version"], tmp_path).startswith("archwright 0.")
    for words in (
        ["list"],
        ["show", "gemma-3-27b"],
        ["list", "choices", "norm"],
        ["list", "studies"],
    ):
        assert _run([command, *words], tmp_path)
    (tmp_path / "notes.txt").write_text("the model and the token of a layer\n" * 300, "utf-8")
    small = [*SHAPE, *MACHINE, "budget=3steps", "evaluate.final_max_tokens=200"]
    _run([command, "train", "modern", "data.text=notes.txt", *small], tmp_path)
    assert (tmp_path / "runs" / "modern" / "report.html").is_file()
    assert _run([command, "generate", "runs/modern", "--max-new-tokens", "4"], tmp_path)


def _package_files() -> list[Path]:
    """Return the files of the package, from the checkout on."""
    files = (path for path in (ROOT / "archwright").rglob("*") if path.is_file())
    return sorted(p.relative_to(ROOT) for p in files if not {*p.parts} & {*NOT_BUILT})


def _run(words: Sequence[str], folder: Path) -> str:
    outside = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    cache = str(folder / "cache")
    done = subprocess.run(
        [*words],
        cwd=folder,
        env={**outside, "ARCHWRIGHT_CACHE": cache, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
