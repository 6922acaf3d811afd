"""Choices from outside the package: every axis that takes them, and the files that hold them."""

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
"""Every axis that takes choices from outside; a new one is a line here."""


def register(choice: type[Choice], part: Any) -> None:
    """Let a choice from outside the package join its axis: files and command lines may name it from now on.

    `part` is a class or a function; what it is called with and what it returns is written in the registry of
    the axis, and by CONTRIBUTING.md.

    Raises:
        ValueError: the choice is no choice of an axis, lacks what these declare, or has another part already.
    """
    registry = registry_of(choice)
    if registry is not None and choice.is_axis() and choice not in (r.base for r in REGISTRIES):
        raise ValueError(
            f'{choice.__name__}: has no kind, by which it is asked for; give it one: kind: Literal["mine"] = "mine"'
        )
    if registry is None or choice.is_axis():
        axes = dict.fromkeys(registry.base.axis for registry in REGISTRIES)
        raise ValueError(
            f"{choice.__name__}: expected a subclass of one of the axes {', '.join(axes)}; archwright new writes a "
            "file with one"
        )
    registry.add(choice, part)


def registry_of(choice: type) -> Registry | None:
    """Return where the parts of a choice stand: in the registry of the nearest class above it that has one."""
    by_base = {registry.base: registry for registry in REGISTRIES}
    return next((by_base[base] for base in choice.__mro__ if base in by_base), None)


def load_parts_file(path: Path) -> str:
    """Run a file, whose choices thereby join the package's; return its SHA-256.

    It becomes a module, as specs look up the names in their annotations in the module they are from.

    Raises:
        UserError: no such file, or whatever goes wrong in it, in one line.
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
    """Return whether a choice from outside the package has joined an axis in this process."""
    choices = (choice for axis in Choice.axes() for choice in axis.kinds.values())
    return any(choice.__module__.partition(".")[0] != "archwright" for choice in choices)


def choices_of(path: Path) -> list[type[Choice]]:
    """Return the choices that joined from a file, which was run by `load_parts_file`."""
    module = _module_of(path)
    joined = (choice for axis in Choice.axes() for choice in axis.kinds.values())
    return [choice for choice in joined if choice.__module__ == module]


def _module_of(path: Path) -> str:
    """Return the name of the module that a file becomes, another one for each place."""
    place = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:8]
    return f"{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{place}"


def _check_registered(path: Path) -> None:
    """Refuse a choice without a part: it could be named, but not built."""
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
    """Say in which line of a file an error arose; nothing where it did not arise there."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}" if error.lineno else ""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""


def in_one_line(error: BaseException) -> str:
    """Return an error's kind and its message in one line."""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(message.split())}".rstrip(": ")
