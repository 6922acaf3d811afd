"""Choices from outside the package: registries of all axes, and files and packages of `--parts`."""

import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from archwright.data import objectives, tasks
from archwright.optim import groups, schedules
from archwright.parts import (
    embeddings,
    feedforward,
    init,
    masks,
    mixers,
    norms,
    positions,
    residuals,
    routing,
)
from archwright.parts.registry import Registry
from archwright.spec.choice import Choice
from archwright.spec.errors import UserError
from archwright.spec.files import check_utf8, open_regular

HOMES = (
    *(norms, residuals, positions, mixers, masks, feedforward, routing, embeddings, init),
    *(tasks, objectives, groups, schedules),
)
"""Modules with the registries of all axes; a module with a new axis is added here."""
REGISTRIES: dict[str, Registry] = {
    name: value
    for home in HOMES
    for name, value in vars(home).items()
    if isinstance(value, Registry)
}
"""Registries of all axes, by the names of their variables."""


def register(choice: type[Choice], part: Any) -> None:
    """Register a choice from outside the package with its axis.

    Specs and command lines can then name it. `part` is a class or a function; the axis's registry and CONTRIBUTING.md
    document its arguments and result.

    Raises:
        ValueError: `choice` belongs to no axis, lacks a required declaration, or already has another part.
    """
    registry = registry_of(choice)
    if (
        registry is not None
        and choice.is_axis()
        and choice not in (r.base for r in REGISTRIES.values())
    ):
        raise ValueError(
            f'{choice.__name__}: has no kind, which selects it; declare one: kind: Literal["mine"] = "mine"'
        )
    if registry is None or choice.is_axis():
        axes = dict.fromkeys(registry.base.axis for registry in REGISTRIES.values())
        raise ValueError(
            f"{choice.__name__}: expected a subclass of one of the axes {', '.join(axes)}; archwright new writes a "
            "file with one"
        )
    registry.add(choice, part)


def registry_of(choice: type) -> Registry | None:
    """Return the registry of the nearest base class with one, or None."""
    by_base = {registry.base: registry for registry in REGISTRIES.values()}
    return next((by_base[base] for base in choice.__mro__ if base in by_base), None)


def load_parts_file(path: Path) -> str:
    """Run a file or package that defines choices; return its SHA-256.

    The SHA-256 of a package covers all its Python files.

    Args:
        path: A file, a folder with __init__.py, or the dotted name of an installed module.

    Raises:
        UserError: It is missing, or its code raises an error.
    """
    source, run = _prepared(path)
    try:
        run()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text = in_one_line(error).replace(f"{_module_of(path)}.", "")
        raise UserError(f"--parts {path}{line_in(path, error)}: {text}") from error
    _check_registered(path)
    if source.name != "__init__.py":
        return hashlib.sha256(source.read_bytes()).hexdigest()
    digest = hashlib.sha256()
    for file in sorted(source.parent.rglob("*.py")):
        name, content = file.relative_to(source.parent).as_posix(), file.read_bytes()
        digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\0".encode())
    return digest.hexdigest()


def _prepared(path: Path) -> tuple[Path, Callable[[], object]]:
    """Return the file of the code, and a function that runs it as a module."""
    name = _module_of(path)
    if _is_module(path):
        return _module_file(path, name), lambda: importlib.import_module(name)
    check_utf8(path)
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
        raise UserError(f"--parts {path}: cannot be read: {error.strerror}") from None
    # A module, because specs resolve annotations in the module that defines them.
    spec = importlib.util.spec_from_loader(name, loader=None, origin=str(path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules[name] = module
    return path, lambda: exec(compile(content, str(path), "exec"), module.__dict__)


def _module_file(path: Path, name: str) -> Path:
    """Return the file of an installed module, or of a package in a folder."""
    if path.is_dir():
        if not (path / "__init__.py").is_file():
            raise UserError(f"--parts {path}: no __init__.py is in this folder; expected a package")
        sys.path.append(str(path.resolve().parent))  # last: installed modules come first
        importlib.invalidate_caches()
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # of a package above
        found = None
    if found is None or found.origin is None:
        raise UserError(f"--parts {path}: no such file or folder, and no installed module")
    file = Path(found.origin)
    if path.is_dir() and file.parent.resolve() != path.resolve():
        raise UserError(
            f"--parts {path}: another module {name} is in {file.parent}; rename the folder"
        )
    return file


def have_joined() -> bool:
    """True if a choice from outside the package is registered."""
    choices = (choice for axis in Choice.axes() for choice in axis.kinds.values())
    return any(choice.__module__.partition(".")[0] != "archwright" for choice in choices)


def choices_of(path: Path) -> list[type[Choice]]:
    """Return the choices defined in a file or package that `load_parts_file` ran."""
    module = _module_of(path)
    joined = (choice for axis in Choice.axes() for choice in axis.kinds.values())
    return [c for c in joined if f"{c.__module__}.".startswith(f"{module}.")]


def _module_of(path: Path) -> str:
    """Return the module name: unique per path for a file, the real one for a package."""
    if _is_module(path):
        return path.resolve().name if path.is_dir() else str(path)
    place = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:8]
    return f"{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{place}"


def _is_module(path: Path) -> bool:
    """True for a package in a folder, and for the name of an installed module."""
    return path.is_dir() or not (path.exists() or path.suffix == ".py")


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
    """Return ", line N" for an error raised in the file, ", FILE line N" in a folder, else ""."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [(Path(frame.filename), frame.lineno) for frame in frames]
    if isinstance(error, SyntaxError):
        places.append((Path(error.filename or path), error.lineno))
    inside = [(f, n) for f, n in places if n and (f == path or path.resolve() in f.parents)]
    file, line = inside[-1] if inside else (path, None)
    return "" if line is None else f",{'' if file == path else f' {file.name}'} line {line}"


def in_one_line(error: BaseException) -> str:
    """Return an error's type and message on a single line."""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(message.split())}".rstrip(": ")
