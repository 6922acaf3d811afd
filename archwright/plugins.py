"""Choices from outside the package: registries of all axes, and `--parts` files."""

import hashlib
import importlib.util
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from archwright.data.objectives import OBJECTIVES
from archwright.data.tasks import TASKS
from archwright.optim.groups import OPTIMIZERS
from archwright.optim.schedules import SCHEDULES
from archwright.parts.embeddings import SEQUENCE_HEADS, TRANSFORMS
from archwright.parts.feedforward import ACTIVATIONS, FEEDFORWARDS, GATES
from archwright.parts.init import INITS
from archwright.parts.masks import MASKS
from archwright.parts.mixers import (
    ATTENTIONS,
    CROSS_ATTENTIONS,
    DISTANCE_SCORES,
    QUERY_TEMPERATURES,
    RECURRENCES,
    SCORE_SCALES,
    VALUE_EMBEDDINGS,
)
from archwright.parts.norms import NORMS
from archwright.parts.positions import POSITIONS, SCALINGS
from archwright.parts.registry import Registry
from archwright.parts.residuals import RESIDUALS
from archwright.parts.routing import ROUTINGS
from archwright.spec.choice import Choice
from archwright.spec.errors import UserError
from archwright.spec.files import check_utf8, open_regular

REGISTRIES: tuple[Registry, ...] = (
    NORMS,
    RESIDUALS,
    POSITIONS,
    SCALINGS,
    ATTENTIONS,
    RECURRENCES,
    CROSS_ATTENTIONS,
    MASKS,
    SCORE_SCALES,
    QUERY_TEMPERATURES,
    DISTANCE_SCORES,
    VALUE_EMBEDDINGS,
    FEEDFORWARDS,
    ACTIVATIONS,
    GATES,
    ROUTINGS,
    TRANSFORMS,
    SEQUENCE_HEADS,
    INITS,
    TASKS,
    OBJECTIVES,
    OPTIMIZERS,
    SCHEDULES,
)
"""Registries of all axes; a new axis is added here."""


def register(choice: type[Choice], part: Any) -> None:
    """Register a choice from outside the package with its axis.

    Specs and command lines can then name it. `part` is a class or a function; the axis's registry and CONTRIBUTING.md
    document its arguments and result.

    Raises:
        ValueError: `choice` belongs to no axis, lacks a required declaration, or already has another part.
    """
    registry = registry_of(choice)
    if registry is not None and choice.is_axis() and choice not in (r.base for r in REGISTRIES):
        raise ValueError(
            f'{choice.__name__}: has no kind, which selects it; declare one: kind: Literal["mine"] = "mine"'
        )
    if registry is None or choice.is_axis():
        axes = dict.fromkeys(registry.base.axis for registry in REGISTRIES)
        raise ValueError(
            f"{choice.__name__}: expected a subclass of one of the axes {', '.join(axes)}; archwright new writes a "
            "file with one"
        )
    registry.add(choice, part)


def registry_of(choice: type) -> Registry | None:
    """Return the registry of the nearest base class with one, or None."""
    by_base = {registry.base: registry for registry in REGISTRIES}
    return next((by_base[base] for base in choice.__mro__ if base in by_base), None)


def load_parts_file(path: Path) -> str:
    """Run a file that defines choices; return its SHA-256.

    The file becomes a module, because specs resolve annotations in the module that defines them.

    Raises:
        UserError: The file is missing, or its code raises an error.
    """
    check_utf8(path)
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
        raise UserError(f"--parts {path}: cannot be read: {error.strerror}") from None
    name = _module_of(path)
    spec = importlib.util.spec_from_loader(name, loader=None, origin=str(path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        exec(compile(content, str(path), "exec"), module.__dict__)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text = in_one_line(error).replace(f"{name}.", "")
        raise UserError(f"--parts {path}{line_in(path, error)}: {text}") from error
    _check_registered(path)
    return hashlib.sha256(content).hexdigest()


def have_joined() -> bool:
    """True if a choice from outside the package is registered."""
    choices = (choice for axis in Choice.axes() for choice in axis.kinds.values())
    return any(choice.__module__.partition(".")[0] != "archwright" for choice in choices)


def choices_of(path: Path) -> list[type[Choice]]:
    """Return the choices defined in a file that `load_parts_file` ran."""
    module = _module_of(path)
    joined = (choice for axis in Choice.axes() for choice in axis.kinds.values())
    return [choice for choice in joined if choice.__module__ == module]


def _module_of(path: Path) -> str:
    """Return the module name of a file, unique per path."""
    place = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:8]
    return f"{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{place}"


def _check_registered(path: Path) -> None:
    """Refuse choices without a part: specs could name but not build them."""
    joined = choices_of(path)
    if not joined:
        raise UserError(
            f"--parts {path}: no choice is in it; archwright new writes a file with one, to start from"
        )
    for choice in joined:
        registry = registry_of(choice)
        if registry is None or choice not in registry:
            raise UserError(
                f"--parts {path}: {choice.__name__} has no part; end the file with "
                f"archwright.register({choice.__name__}, ...) and the module that computes it"
            )


def line_in(path: Path, error: BaseException) -> str:
    """Return ", line N" for an error raised in the file, else ""."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}" if error.lineno else ""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""


def in_one_line(error: BaseException) -> str:
    """Return an error's type and message on a single line."""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(message.split())}".rstrip(": ")
