"""Output of `archwright show`: a model's card, values or export family."""

import argparse
from collections.abc import Iterator, Mapping, Sequence

from archwright.catalogue.parameter_counts import Counts, parameter_counts
from archwright.cli.card import card
from archwright.cli.cost_words import COSTS, cost_words, costs_of
from archwright.cli.models import check_words, load_model
from archwright.format import columns, parameters
from archwright.spec import read
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.overrides import dump, flatten, override, toml_value, without_stale_sources
from archwright.spec.rules import suspicions
from archwright.spec.run_spec import RunSpec

NOT_COUNTED = "counted with --costs, which takes a second or two; archwright plan shows all details"


def print_model(options: argparse.Namespace) -> None:
    """Print a model according to the options of `archwright show`.

    Raises:
        UserError: unknown model, or mistakes in it.
    """
    if options.model in read.preset_names("runs"):
        raise UserError(
            f'"{options.model}" is a recipe, not a model; see it with: '
            f"archwright train {options.model} --dry-run"
        )
    loaded = load_model(options.model)
    check_words(options.model, options.assignments, run=False)
    before = loaded.spec.tiny() if options.tiny else loaded.spec
    spec = override(before, options.assignments)
    own_file = options.model.endswith(".toml") and not options.tiny
    original = read.given_model(options.model) if own_file else before
    if options.toml:
        print(
            read.starting_file(without_stale_sources(loaded.spec, spec), loaded.objective), end=""
        )
        return
    counts, blame = _counts(spec), loaded.blame
    if options.tiny:  # changed values have no source
        old, new = flatten(loaded.spec.model_dump()), flatten(spec.model_dump())
        changed = [path for path, value in new.items() if old.get(path) != value]
        blame = {**blame, **dict.fromkeys(changed, read.Origin("--tiny"))}
    if options.values or options.all or options.blame:
        lines = _values(spec, blame, options)
    else:
        values = flatten(spec.model_dump())
        blame = {k: v for k, v in blame.items() if k in values}
        blame |= _set_here(options.assignments, values)
        costs = costs_of(spec, loaded.objective, count=options.costs)
        costs_shown = {"all": NOT_COUNTED}
        if costs is not None:
            words = cost_words(costs)
            if words["state"] == "none":  # no recurrence
                del words["state"]
            costs_shown = {name: f"{text}, {COSTS[name][2]}" for name, text in words.items()}
        lines = card(spec, blame, f"{loaded.spec.name}.toml", counts, costs_shown)
    if options.exportable:
        lines = _exportable(spec)
    title = f"{spec.name}, {parameters(counts.total)} parameters"
    print("\n".join([*filter(None, (title, spec.source, _objective(loaded))), "", *lines]))
    for line in suspicions(spec, original):
        print(f"\nwarning: {line}")


def _objective(loaded: read.Loaded) -> str:
    """Describe the published objective if it is not next-token prediction."""
    objective = loaded.objective
    if objective == RunSpec().objective:
        return ""
    usual, values = (flatten(dump(spec), "objective.") for spec in (type(objective)(), objective))
    settings = [f"objective.kind={objective.kind}"]
    settings += [
        f"{path}={toml_value(value)}" for path, value in values.items() if usual.get(path) != value
    ]
    return f"trained by default with {' '.join(settings)}" + (
        f"\n  {loaded.objective_source}" if loaded.objective_source else ""
    )


def _exportable(spec: ModelSpec) -> Iterator[str]:
    """Yield the family in which a model can be exported, or the choices that prevent its export."""
    from archwright.hf import nearest_fit

    fit = nearest_fit(spec)
    family = f"{fit.family.model_type} ({fit.family.architecture_of(spec)})"
    if not fit.blocking:
        yield f"exportable as {family}"
    else:
        yield f"no published family has all of these choices; the nearest, {family}, cannot have"
        yield from (f"  {line}" for line in fit.blocking)


def _values(
    spec: ModelSpec, blame: Mapping[str, read.Origin], options: argparse.Namespace
) -> Iterator[str]:
    """Yield the values set by files or assignments, or all values."""
    values = flatten(spec.model_dump())
    blame = {**blame, **_set_here(options.assignments, values)}
    origins = {
        path: {origin for below, origin in blame.items() if below.startswith(f"{path}.")}
        for path, equal in read.even_tables(spec).items()
        if equal
    }
    tables = [path for path, below in origins.items() if len(below) < 2]  # from one origin
    values, blame = read.collapse_uniform(values, tables), read.collapse_uniform(blame, tables)
    rows: list[tuple[str, str, str]] = []
    for path, value in read.collapse_uniform(flatten(spec.resolved().model_dump()), tables).items():
        origin = blame.get(path, read.Origin("default"))
        shown = options.all or options.blame or origin.file != "default"
        if shown and path.split(".")[0] not in ("name", "source", "sources"):
            auto = "   (auto)" if values.get(path) == "auto" else ""
            origin_text = ": ".join(filter(None, (origin.file, origin.source)))
            rows.append(
                (path, toml_value(value) + auto, f"# {origin_text}" if options.blame else "")
            )
    yield from columns(rows) if rows else ()


def _set_here(assignments: Sequence[str], values: Mapping[str, object]) -> dict[str, read.Origin]:
    """Return the origins of assigned values. If a kind is assigned, its other options are defaults."""
    keys = {assignment.partition("=")[0].strip() for assignment in assignments}
    origins = {}
    for path in values:
        if any(path == key or path.startswith(f"{key}.") for key in keys):
            origins[path] = read.Origin("the command line")
        elif f"{path.rpartition('.')[0]}.kind" in keys:
            origins[path] = read.Origin("default")
    return origins


def _counts(spec: ModelSpec) -> Counts:
    """Return parameter counts. Models with choices from outside the package are built to count them."""
    if (counts := parameter_counts(spec)) is not None:
        return counts
    from archwright.planning.cost import counts_of

    return counts_of(spec)
