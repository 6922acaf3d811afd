"""Models by name: presets, TOML files, runs, and config.json of other libraries."""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from archwright.spec.errors import UserError
from archwright.spec.overrides import flatten
from archwright.spec.read import (
    ONLY_RUNS,
    Loaded,
    Origin,
    is_run,
    load_run,
    load_with_blame,
    preset_names,
)
from archwright.spec.run_rules import enforce_run
from archwright.spec.run_spec import PartsFile, RunSpec
from archwright.spec.scale_down import tiny_run

CONFIG = "config.json"
WEIGHTS = ("*.safetensors", "*.bin")


def load_model(name: str) -> Loaded:
    """Return the spec of a model and the origin of each value.

    Raises:
        UserError: unknown model, or mistakes in it.
    """
    if not is_config(name):
        return load_with_blame(name)
    from archwright.hf.configs import load_spec

    spec = load_spec(name)
    return Loaded(spec, dict.fromkeys(flatten(spec.model_dump()), Origin(CONFIG)))


def load_recipe(name: str, *, weights: bool = False) -> RunSpec:
    """Return the run of a recipe, a model or a config.json.

    Raises:
        UserError: as in `load_model`, or a folder with weights, unless `weights` allows (and ignores) them.
    """
    if not is_config(name):
        return load_run(name)
    folder = Path(name)
    if not weights and any(path for pattern in WEIGHTS for path in folder.glob(pattern)):
        raise UserError(
            f"{name}: a checkpoint of another library; archwright import {name} makes a run to continue from, "
            f"and archwright train {folder / CONFIG} trains its architecture from scratch"
        )
    model = load_model(name).spec
    return RunSpec(name=model.name, model=model)


def requested_run(
    verb: str, options: argparse.Namespace, parts: Mapping[str, str]
) -> tuple[RunSpec, RunSpec]:
    """Return the requested run, and the run before its assignments.

    Raises:
        UserError: unknown recipe or model, or mistakes in its values.
    """
    what = options.what
    if not what:
        raise UserError(
            f"{verb} what? Name a recipe, a model or a TOML file, such as: archwright {verb} demo"
        )
    if "=" in what:
        raise UserError(f'{verb} what? "{what}" sets a value; name a recipe or model before it')
    is_spec = what.endswith(".toml") or is_config(what)
    if Path(what).is_file() and not is_spec:
        raise UserError(
            f'{verb} what? "{what}" is a text; name a model before it: '
            f"archwright {verb} modern data.text={what}"
        )
    spec = load_recipe(what)
    check_words(what, options.assignments, run=True)
    before = tiny_run(spec) if options.tiny else spec
    spec = before.override(*options.assignments)
    files = tuple(PartsFile(name=name, sha256=digest) for name, digest in parts.items())
    spec = spec.model_copy(update={"parts": files})
    enforce_run(spec)
    return spec, before


def check_words(name: str, words: Sequence[str], *, run: bool) -> None:
    """Check the assignments of a model, or of a run if `run`.

    Raises:
        UserError: a word is a model, a file or a single equals sign, or sets a run's key in a model.
    """
    lines = []
    for word in words:
        if word in preset_names("models"):
            lines.append(
                f'"{word}": expected key=value; archwright diff {name} {word} shows their differences, and '
                f"archwright compare {name} {word} tests which is better"
            )
        elif run and "=" not in word and Path(word).exists():
            lines.append(f'"{word}": expected key=value. Did you mean "data.text={word}"?')
        elif not run and re.split(r"[.=]", word)[0] in ONLY_RUNS - {"model"}:
            key = word.partition("=")[0]
            lines.append(
                f"{key}: a key of a run, not of a model; see it with: archwright train {name} {word} --dry-run"
            )
    if "=" in words:
        at = [*words].index("=")
        text = " ".join([*words][max(0, at - 1) : at + 2])
        lines = [f'"{text}": expected key=value without blanks around the equals sign']
    if lines:
        raise UserError(*lines)


def is_config(name: str) -> bool:
    """True for a config.json or its folder, except presets and runs."""
    path = Path(name)
    if path.name == CONFIG:
        return path.is_file()
    ours = name in (*preset_names("models"), *preset_names("runs")) or is_run(name)
    return not ours and (path / CONFIG).is_file()
