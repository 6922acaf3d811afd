"""Choices from installed packages."""

from functools import cache

from archwright.spec.errors import UserError


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
