"""Versions of the package and of the files that it writes."""

from functools import cache
from pathlib import Path

from archwright.spec.errors import UserError

FORMAT = 2
"""Format of run folders, their spec.toml and their checkpoints."""


def check_format(path: Path, found: object) -> None:
    """Refuse a file of another format.

    Raises:
        UserError: `found` is not `FORMAT`.
    """
    if found != FORMAT:
        is_later = isinstance(found, int) and found > FORMAT
        advice = "Install a later archwright" if is_later else "Train again with another --out"
        raise UserError(f"{path}: found format {str(found)[:20]}; expected {FORMAT}. {advice}.")


@cache
def version() -> str:
    """Return the version that is installed, or "0" for a checkout that is not."""
    from importlib import metadata  # slow to import, rarely needed

    try:
        return metadata.version("archwright")
    except metadata.PackageNotFoundError:
        return "0"
