"""Choices from installed packages, and special choices of this one."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec

from archwright.spec.errors import UserError

CLASSIC = "archwright.classic"
"""Special choices of published models. No other module names this package, and all others work without it."""


@cache
def load_classic(half: str) -> None:
    """Import the specs or parts of the special choices, if their package exists.

    Args:
        half: "spec" (no torch) or "parts".
    """
    if find_spec(CLASSIC):
        import_module(f"{CLASSIC}.{half}")


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
