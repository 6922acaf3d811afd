"""The documentation as a site: every link leads to a page, and every public module has one."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import archwright
from tests.tiny import ROOT


def build(place: Path, *, config: Path = ROOT / "mkdocs.yml", api: bool = False) -> str:
    """Return what the strict build complains of, empty where nothing is wrong. With --quiet it would not even fail."""
    environment = os.environ | {"SITE_API": str(api).lower(), "NO_MKDOCS_2_WARNING": "1"}
    words = ["build", "--strict", "-f", str(config), "-d", str(place / "site")]
    found = subprocess.run(
        [sys.executable, "-m", "mkdocs", *words],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    lines = (found.stdout + found.stderr).splitlines()
    complaints = "\n".join(line for line in lines if line.startswith(("WARNING", "ERROR")))
    assert (found.returncode == 0) == (complaints == ""), lines
    return complaints


@pytest.mark.release
@pytest.mark.slow
def test_no_link_is_dead(tmp_path: Path) -> None:
    assert build(tmp_path) == ""
    pages = {p.relative_to(tmp_path / "site").as_posix() for p in tmp_path.rglob("*.html")}
    assert {"index.html", "contributing.html", "calibration.html", "results/index.html"} <= pages
    assert {
        "reference/index.html",
        "reference/lab/looks.html",
        "reference/spec/index.html",
    } <= pages


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize(
    ("link", "complaint"),
    [
        ("tasks.md#no-such-heading", "no-such-heading"),
        ("../archwright/no_such.py", "no_such.py is not there"),
        ("../tests/tiny.py", "tests/tiny.py has no page on the site"),
        ("nowhere.md", "nowhere.md is not there"),
    ],
)
def test_a_dead_link_fails_the_build(tmp_path: Path, link: str, complaint: str) -> None:
    for name in ("docs", "website", "archwright", "bench", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "docs").unlink()
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "mkdocs.yml"):
        shutil.copy(ROOT / name, tmp_path / name)
    page = tmp_path / "docs" / "tasks.md"
    page.write_text(page.read_text("utf-8") + f"\n[there]({link})\n", "utf-8")
    assert complaint in build(tmp_path, config=tmp_path / "mkdocs.yml")


def test_the_first_page_of_the_reference_has_every_public_name() -> None:
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "website" / "hooks.py")
    assert spec
    assert spec.loader
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    rows = re.findall(
        r"^\| \[`(\w+)`\]\[([\w.]+)\] \| (.*\.) \|$", hooks.public_names(), re.MULTILINE
    )
    assert {name for name, _, _ in rows} == {*archwright.__all__}
    assert all(path == f"{archwright._HOMES[name]}.{name}" for name, path, _ in rows)


@pytest.mark.release
def test_the_reference_is_built_from_docstrings(tmp_path: Path) -> None:
    assert build(tmp_path, api=True) == ""
    page = (tmp_path / "site" / "reference" / "lab" / "looks.html").read_text("utf-8")
    assert "Lan and DeMets" in page
    start = (tmp_path / "site" / "reference" / "index.html").read_text("utf-8")
    assert "training/train.html#archwright.training.train.train" in start
    assert "shared_error" in page
