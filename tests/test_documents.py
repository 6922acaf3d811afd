"""What pages for newcomers tell them to type can be typed, what they link to is there, and what they say of versions
is so. Commands are read by the verbs' own words and specs; `test_readme.py` runs those of the README."""

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from archwright.spec.errors import UserError
from archwright.spec.machine import MachineSpec
from tests.commands import commands, linked_files, read
from tests.tiny import ROOT

PAGES = sorted(
    [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "first-hour").glob("*.md"),
        *ROOT.glob("*.md"),
    ]
)
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CITATION: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
TYPED = (
    "docs/tutorial.md",
    "docs/how-to.md",
    "docs/faq.md",
    "docs/logging.md",
    "docs/recipes.md",
    "docs/platforms.md",
    "docs/tasks.md",
    "docs/objectives.md",
    "docs/planning.md",
)
LINES = sorted({line for page in TYPED for line in commands((ROOT / page).read_text("utf-8"))})


@pytest.mark.parametrize("line", LINES)
def test_a_command_can_be_typed(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read(line, monkeypatch)


@pytest.mark.parametrize(
    "line", ["show modren", "train modern norm.kind=batch", "list choices nrom", "generate"]
)
def test_a_mistake_in_a_command_is_found(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError):
        read(f"archwright {line}", monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    assert [file for file in linked_files(page) if not file.exists()] == []


def test_the_readme_leads_to_every_page() -> None:
    linked = linked_files(ROOT / "README.md")
    assert {page for page in PAGES if page.name != "README.md"} <= {*linked}
    assert ROOT / "CITATION.cff" in linked


def test_the_citation_is_of_this_version() -> None:
    """Keys that CFF 1.2.0 requires, and what pyproject.toml says too."""
    assert {"cff-version", "message", "title", "authors"} <= CITATION.keys()
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["version"] == PROJECT["version"]
    assert CITATION["title"] == PROJECT["name"]
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["keywords"] == PROJECT["keywords"]
    assert CITATION["authors"] == [{"name": "The archwright authors"}]


def test_the_changelog_has_this_version_and_what_is_not_released() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    sections = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert sections == ["[Unreleased]", PROJECT["version"], "Versions"]
    groups = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert {*groups} <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_page_of_platforms_has_the_bounds_and_devices_of_the_package() -> None:
    text = " ".join((ROOT / "docs" / "platforms.md").read_text("utf-8").split())
    (torch,) = (one for one in PROJECT["dependencies"] if one.startswith("torch"))
    lowest, above = re.findall(r"2\.(\d+)", torch)
    assert f"torch from 2.{lowest} to 2.{int(above) - 1}" in text
    assert f"Python from {PROJECT['requires-python'].removeprefix('>=')} on" in text
    devices = get_args(MachineSpec.model_fields["device"].annotation)
    assert devices == ("auto", "cpu", "cuda")
    assert "`machine.device` is `auto`, `cpu` or `cuda`" in text
