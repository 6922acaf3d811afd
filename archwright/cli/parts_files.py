"""Holding a run to the files of choices from outside the package that it was made with."""

import warnings
from collections.abc import Mapping

from archwright.runs import RunFolder
from archwright.spec.errors import UserError


def check_parts(folder: RunFolder, given: Mapping[str, str], *, same: bool) -> None:
    """Hold a run to the files it was made with: they must be given, and for training be the `same`.

    Raises:
        UserError: one that is not given, or changed, one line each.
    """
    lines = []
    for name, digest in folder.parts.items():
        if name not in given:
            lines.append(f"{folder.path} was made with choices of {name}; add --parts {name}")
        elif given[name] != digest and same:
            lines.append(
                f"--parts {name}: not the file that {folder.path} was made with (SHA-256 "
                f"{given[name][:12]}, not {digest[:12]}); give that one, or train with another --out"
            )
        elif given[name] != digest:
            warnings.warn(f"{name} has changed since {folder.path} was made with it", stacklevel=2)
    if lines:
        raise UserError(*lines)
