"""Output of `archwright list`, `schema` and `compare --help`.

`make docs` writes it to presets/listings, so that these commands need not read every preset."""

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

from archwright.catalogue.axes import Option, Section, command, refusal, sections
from archwright.catalogue.chosen import chosen
from archwright.catalogue.table import COLUMNS, rows
from archwright.catalogue.usage import Usage, named, used_by
from archwright.hf.families import FAMILIES
from archwright.spec.docstrings import field_docstrings
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load_run, load_study, preset_names, study_names
from archwright.spec.run_spec import RunSpec
from archwright.spec.schema import file_schema
from archwright.spec.study_spec import OPTIONS, StudySpec


def _models() -> dict[str, Any]:
    """Return a record per model, and the columns of the brief table."""
    return {
        "brief": [name for name, column in COLUMNS.items() if column.brief],
        "rows": [row.record() for row in rows()],
    }


def _recipes() -> list[list[str]]:
    runs = [(name, load_run(name)) for name in preset_names("runs")]
    return [
        [name, run.model.name, ", ".join(run.data.texts), run.budget, run.optimizer.kind]
        for name, run in runs
    ]


def _studies() -> list[list[str]]:
    studies = [(name, load_study(name)) for name in study_names()]
    return [
        [name, study.baseline[0], str(len(study.variants)), study.budget, study.question]
        for name, study in studies
    ]


def _choices() -> list[dict[str, Any]]:
    """Return every axis and table with its kinds, their options, and the presets that use them."""
    usage = Usage()
    return [
        {
            "name": section.name,
            "paths": section.places,
            "about": _about(section),
            "options": _options(section.options, usage),
            "families": [
                {"kinds": f.kinds, "about": f.meaning, "options": _options(f.options, usage)}
                for f in section.families
            ],
            "kinds": [
                {
                    "name": kind.name,
                    "about": kind.meaning,
                    "users": [*used_by(section, kind, usage)],
                    "refusal": refusal(kind.asks),
                    "command": command(kind.asks),
                    "options": _options(kind.options, usage),
                }
                for kind in section.kinds
            ],
        }
        for section in sections()
    ]


def _about(section: Section) -> list[str]:
    default = f", by default {section.default}" if section.default else ""
    paths = [f"set at {', '.join(section.places)}{default}"] if section.path else []
    return [section.meaning, *paths]


def _options(options: Sequence[Option], usage: Usage) -> list[list[str]]:
    """Return the command-line arguments and the description of each option."""
    rows = []
    for option in options:
        default = f"; by default {option.default}" if option.default else ""
        presets = usage.presets_with_option(option)
        used = f" Set by {named(presets)}." if presets else ""
        about = f"{option.meaning} Takes {option.values}{default}.{used}".strip()
        rows.append([shlex.join(option.asks), about])
    return rows


def _study_options() -> list[dict[str, Any]]:
    """Return the options of a study for the command line."""
    docstrings = field_docstrings(StudySpec)
    options = []
    for name in OPTIONS:
        field = StudySpec.model_fields[name]
        about, switch = " ".join(docstrings[name].split()), isinstance(field.default, bool)
        if field.default != ():
            about += f" Default: {_as_typed(field.default)}."
        kinds = get_args(field.annotation)
        values = "|".join(kinds) if all(isinstance(kind, str) for kind in kinds) else ""
        options.append(
            {"name": name, "about": about, "metavar": values or name.upper(), "switch": switch}
        )
    return options


def _as_typed(value: object) -> str:
    """Return a default in command-line syntax."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


LISTINGS: dict[str, Callable[[], Any]] = {
    "models": _models,
    "chosen": chosen,
    "recipes": _recipes,
    "studies": _studies,
    "families": lambda: [[name, FAMILIES[name].architecture] for name in sorted(FAMILIES)],
    "choices": _choices,
    "study_options": _study_options,
    "schema_model": partial(file_schema, ModelSpec),
    "schema_run": partial(file_schema, RunSpec),
    "schema_study": partial(file_schema, StudySpec),
}
