"""Choices from installed packages, and special choices, families and presets of this one."""

import json
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from archwright import presets
from archwright.spec.errors import UserError

CLASSIC = "archwright.classic"
"""Special choices of published models. No other module names this package, and all others work without it."""


def classic_folder() -> Path | None:
    """Return the folder of the special choices in this copy of the package; None if it is missing."""
    folder = presets.FOLDER.parent / "classic"
    return folder if (folder / "__init__.py").is_file() else None


@cache
def load_classic(part: str) -> ModuleType | None:
    """Import specs, parts or families of the special choices; return None if their package is missing.

    Args:
        part: "spec" (no torch), "parts" or "families".
    """
    return import_module(f"{CLASSIC}.{part}") if classic_folder() else None


def preset_files(room: str) -> dict[str, Path]:
    """Return the presets by name, in alphabetical order, with those of the special choices.

    Args:
        room: "models", "runs", "studies" or "hardware".
    """
    classic = classic_folder()
    folders = [presets.FOLDER, *([classic / "presets"] if classic else [])]
    files = [file for folder in folders for file in (folder / room).glob("*.toml")]
    return {file.stem: file for file in sorted(files, key=lambda file: file.stem)}


def refuse_classic(name: str) -> None:
    """Raise a UserError if `name` is a preset of the special choices and their package is missing."""
    rows = json.loads((presets.FOLDER / "listings" / "models.json").read_text("utf-8"))["rows"]
    if not classic_folder() and any(row["model"] == name for row in rows):
        raise UserError(
            f"{name}: a preset of {CLASSIC}, which is missing from this installation; reinstall archwright"
        )


@cache
def load_installed(path: str = "") -> None:
    """Import the modules that installed packages name in the entry point group "archwright.parts".

    Args:
        path: Path of the value that needs them, for errors.

    Raises:
        UserError: A module raises an error.
    """
    from importlib.metadata import entry_points

    for entry in entry_points(group="archwright.parts"):
        try:
            entry.load()
        except Exception as error:
            package = entry.dist.name if entry.dist else entry.name
            raise UserError(
                f"{path}the installed package {package} cannot add its choices, {entry.value}: "
                f"{type(error).__name__}: {error}"
            ) from error
