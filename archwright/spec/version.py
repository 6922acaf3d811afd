"""Which version of the package this is."""

from functools import cache


@cache
def version() -> str:
    """Return the version that is installed, or "0" for a checkout that is not."""
    from importlib import metadata  # slow to import, seldom wanted

    try:
        return metadata.version("archwright")
    except metadata.PackageNotFoundError:
        return "0"
