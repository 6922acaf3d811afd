"""Choices from outside join the registry of their axis, or are refused in one line."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from archwright.cli import main
from archwright.parts.feedforward import FEEDFORWARDS
from archwright.parts.norms import NORMS
from archwright.plugins import REGISTRIES, choices_of, load_parts_file, register, registry_of
from archwright.spec.choice import Choice, load_installed
from archwright.spec.errors import UserError
from archwright.spec.norms import Norm, RMSNorm
from archwright.spec.read import load

LONELY = """
from typing import Literal

from archwright.spec.norms import Norm


class Lonely(Norm):
    kind: Literal["lonely"] = "lonely"
"""


def test_a_choice_goes_to_the_nearest_registry() -> None:
    assert registry_of(RMSNorm) is NORMS
    assert {registry.base.axis for registry in REGISTRIES.values()} >= {
        "norm",
        "optimizer",
        "schedule",
    }
    assert all(registry_of(choice) for registry in REGISTRIES.values() for choice in registry)
    assert registry_of(dict) is None
    assert FEEDFORWARDS in REGISTRIES.values()


@pytest.mark.parametrize("wrong", [Norm, Choice])
def test_an_axis_itself_joins_nothing(wrong: type[Choice]) -> None:
    with pytest.raises(ValueError, match="expected a subclass of one of the axes norm"):
        register(wrong, object)


def test_a_choice_without_a_kind_is_refused() -> None:
    class Nameless(Norm):
        """A norm that cannot be asked for."""

    with pytest.raises(ValueError, match=r"Nameless: has no kind, .* kind: Literal"):
        register(Nameless, object)


def test_a_choice_without_a_part_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "lonely.py"
    file.write_text(LONELY)
    try:
        with pytest.raises(UserError, match=r"Lonely has no part; end the file with"):
            load_parts_file(file)
    finally:
        Norm.kinds.pop("lonely", None)


PACKAGE = {
    "__init__.py": "from .norms import Soft\nimport archwright\narchwright.register(Soft, lambda spec, dim: None)\n",
    "norms.py": LONELY.replace("Lonely", "Soft").replace("lonely", "soft"),
}


@pytest.fixture
def package(
    tmp_path: Path, visitors: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Path]]:
    """Return a function that writes a package of choices with a name of its own."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}

    def write(name: str, **changed: str) -> Path:
        for file, text in (
            PACKAGE | {f"{file}.py": text for file, text in changed.items()}
        ).items():
            path = tmp_path / name / file
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return tmp_path / name

    yield write
    for name in {*sys.modules} - before:
        del sys.modules[name]


def test_a_package_joins_and_any_of_its_files_counts(package: Callable[..., Path]) -> None:
    folder = package("soft_parts")
    digest = load_parts_file(folder)
    assert [choice.__name__ for choice in choices_of(folder)] == ["Soft"]
    assert load_parts_file(folder) == digest
    (folder / "norms.py").write_text(PACKAGE["norms.py"] + "# changed\n")
    assert load_parts_file(folder) != digest


def test_an_installed_module_joins_by_its_name(package: Callable[..., Path]) -> None:
    sys.path.append(str(package("soft_parts").parent))
    assert load_parts_file(Path("soft_parts")) == load_parts_file(Path(sys.path[-1]) / "soft_parts")
    assert [choice.__name__ for choice in choices_of(Path("soft_parts.norms"))] == ["Soft"]


@pytest.mark.parametrize(
    ("name", "changed", "line"),
    [
        (
            "broken_parts",
            {"norms": "\n1 / 0\n"},
            r"broken_parts, norms\.py line 2: ZeroDivisionError",
        ),
        ("unread_parts", {"norms": "\n(\n"}, r"unread_parts, norms\.py line 2: SyntaxError"),
        ("json", {}, r"another module json is in .*; rename the folder"),
        ("empty_parts", {"__init__": ""}, "no choice is in it"),
    ],
)
def test_a_wrong_package_is_one_line(
    name: str, changed: dict[str, str], line: str, package: Callable[..., Path]
) -> None:
    with pytest.raises(UserError, match=line) as caught:
        load_parts_file(package(name, **changed))
    assert len(caught.value.lines) == 1


@pytest.mark.parametrize(
    ("name", "line"), [("no_such.parts", "no installed module"), (".", r"no __init__\.py")]
)
def test_what_is_no_package_is_one_line(
    name: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=line):
        load_parts_file(Path(name))


@pytest.fixture
def installed(
    package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., None]]:
    """Return a function that installs a package with the entry point, as pip would."""

    def install(**changed: str) -> None:
        folder = package("soft_parts", **changed)
        info = folder.parent / "soft_parts-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: soft-parts\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[archwright.parts]\nsoft = soft_parts\n")
        sys.path.append(str(folder.parent))
        load_installed.cache_clear()

    yield install
    load_installed.cache_clear()


def test_choices_of_installed_packages_need_no_option(installed: Callable[..., None]) -> None:
    installed()
    assert load("modern").override("norm.kind=soft").norm.kind == "soft"


@pytest.mark.slow
def test_choices_of_installed_packages_are_listed(
    installed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    installed()
    assert main(["list", "choices", "soft"]) == 0
    assert "norm.kind=soft" in capsys.readouterr().out


def test_an_installed_package_that_fails_is_named(installed: Callable[..., None]) -> None:
    installed(norms="1 / 0\n")
    with pytest.raises(UserError) as caught:
        load("modern").override("norm.kind=soft")
    (line,) = caught.value.lines
    said = "norm.kind: the installed package soft-parts cannot add its choices, soft_parts: "
    assert line == f"{said}ZeroDivisionError: division by zero"
