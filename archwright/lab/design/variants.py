"""Runs of a study's variants, from its words."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from archwright.lab.design.scaling import (
    RECIPE,
    scaled,
    shape,
    with_fitting_masks,
    with_step_tokens,
)
from archwright.spec.errors import UserError
from archwright.spec.overrides import assigned, flatten, full_path
from archwright.spec.read import diff, load_run, preset_names
from archwright.spec.rules import enforce
from archwright.spec.run_rules import enforce_run
from archwright.spec.run_spec import RunSpec
from archwright.spec.study_spec import StudySpec

Arms = dict[str, RunSpec]
"""Run of each variant by name, the baseline first."""

VARIED = (
    "model",
    "optimizer",
    "schedule",
    "batch_size",
    "max_grad_norm",
    "z_loss",
    "label_smoothing",
    "stream_decay",
    "init",
    "name",
    "machine",
    "parts",
)
"""Keys that may differ between variants, with the tokenizer's; the machine's because of recipes."""

DECIDED = {
    "budget": "--budget VALUE",
    "seed": "--first-seed N",
    "evaluate.lengths": "--lengths LENGTHS",
    "evaluate.final_max_tokens": "--evaluation-tokens N",
    "evaluate.stride": "",
    "machine.num_steps": "--budget Nsteps",
    "name": "",
}
"""Keys of a run that a study decides, each with the option of the study."""

SIZES = ("num_heads", "num_kv_heads", "head_dim", "value_head_dim", "hidden_dim")
"""Options for the size of a branch."""

SHAPE = ("model.dim", "model.num_layers")
"""Keys for the size of a model."""


@dataclass(frozen=True)
class Named:
    """Name of a model or recipe, with dotted keys of a run."""

    name: str
    groups: tuple[tuple[str, ...], ...]
    """Groups of keys to set together; later groups override earlier ones."""

    @classmethod
    def of(cls, words: Sequence[str], default: "Named | None" = None) -> "Named":
        """Parse words; without a name, they extend `default`."""
        names = [word for word in words if "=" not in word]
        keys = tuple(run_key(word) for word in words if "=" in word)
        if len(names) > 1 or (names and names[0] != words[0]):
            raise UserError(
                f'"{names[-1]}": expected key=value; a variant is one name and then what it changes'
            )
        if names:
            return cls(names[0], (keys,))
        return cls(default.name, (*default.groups, keys)) if default else cls("modern", (keys,))

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of all groups."""
        return tuple(key for group in self.groups for key in group)


def split(word: str) -> list[str]:
    """Split `modern:norm.kind=layer,dim=64` into name and keys, except inside brackets."""
    words, depth, start = list[str](), 0, 0
    for match in re.finditer(r"[{\[]|[}\]]|[:,](?=[\w.]+\s*=)", word):
        if match[0] in "{[":
            depth += 1
        elif match[0] in "}]":
            depth -= 1
        elif depth == 0:
            words.append(word[start : match.start()])
            start = match.end()
    words.append(word[start:])
    return words if words[0] else words[1:]


def is_variant(word: str) -> bool:
    """True for a model's name or, after a colon, changes of the baseline."""
    return word.startswith(":") or "=" not in split(word)[0]


def run_key(assignment: str) -> str:
    """Return an assignment with the run's full key: `norm.kind=layer` -> `model.norm.kind=layer`."""
    key, equals, value = assignment.partition("=")
    return ".".join(full_path(RunSpec, key.strip())) + equals + value


def arms(study: StudySpec, size: float | None) -> Arms:
    """Return all variants, scaled to about `size` non-embedding parameters unless None."""
    baseline = Named.of(study.baseline)
    wanted = {
        name: baseline if words == study.baseline else Named.of(words, baseline)
        for name, words in words_of(study).items()
    }
    if lines := [*dict.fromkeys(_decided_otherwise(study))]:
        raise UserError(*lines)
    if not study.variants:
        raise UserError("compare with what? Name two variants or more, or a study")
    if label(study.baseline) in study.variants:
        raise UserError(f'"{label(study.baseline)}" is named twice; there is nothing to compare')
    found: Arms = {}
    complaints: dict[str, list[str]] = {}
    for name, named in wanted.items():
        try:
            found[name] = _run(named, study, size, next(iter(found.values()), None))
        except UserError as error:
            for line in error.lines:
                line += _scaled_hint(line, size)
                complaints.setdefault(line, []).append(name)
    lines = [*_named(complaints, len(wanted))]
    lines = lines or [*_ended_early(found)] or [*_forbidden(found, study)]
    if lines:
        raise UserError(*dict.fromkeys(lines))
    return found


def words_of(study: StudySpec) -> dict[str, tuple[str, ...]]:
    """Return the words of each variant and width by name, the baseline's first."""
    named = {label(study.baseline): study.baseline, **study.variants}
    if not study.widths:
        return named
    return {
        at_width(name, width): (*words, f"dim={width}")
        for name, words in named.items()
        for width in study.widths
    }


def at_width(name: str, width: int) -> str:
    """Return the name of a variant at one width."""
    return f"{name}, dim {width}"


def label(words: Sequence[str]) -> str:
    """Return the default name of a variant."""
    return ":".join(words)


def set_by(words: Sequence[str]) -> dict[str, Any]:
    """Return the values set by a variant's words, by dotted path, without automatic ones."""
    values = assigned(RunSpec, (run_key(word) for word in words if "=" in word))
    return {path: value for path, value in values.items() if value not in ("auto", "none")}


def sized_by_user(study: StudySpec) -> bool:
    """True if the study's words set the size of models or name a recipe."""
    baseline = Named.of(study.baseline)
    keys = [run_key(word).partition("=")[0] for word in (*study.common, *baseline.keys)]
    return any(key in SHAPE for key in keys) or _is_recipe(baseline.name)


def _is_recipe(name: str) -> bool:
    return name in preset_names("runs")


def _run(named: Named, study: StudySpec, size: float | None, baseline: RunSpec | None) -> RunSpec:
    run = load_run(named.name)
    length = run.model.context_length
    if not _is_recipe(named.name):
        run = run.override(*RECIPE)
    if size is not None:
        run = scaled(run, size)
    step_tokens = run.tokens_per_step
    for keys in (tuple(map(run_key, study.common)), *named.groups):
        run = run.override(*keys)
    given = assigned(RunSpec, [*map(run_key, study.common), *named.keys])
    if baseline and not study.widths:
        run = _with_sizes_of(baseline, run, given)
    run = with_fitting_masks(run, given, length)
    if size is not None and "batch_size" not in given:
        run = with_step_tokens(run, step_tokens)
    run = run.model_copy(update={"name": "", "parts": study.parts})
    enforce_run(run)
    return run


def _scaled_hint(line: str, size: float | None) -> str:
    """Return the remedy for a value impossible at this size."""
    if size is None:
        return ""
    dim, num_layers = shape(size)
    if "num_heads" in line:
        return f", scaled to dim {dim}: say auto, or give a larger --size"
    return f", scaled to {num_layers} layers: give a larger --size" * ("num_layers: found" in line)


def _with_sizes_of(baseline: RunSpec, run: RunSpec, given: Mapping[str, Any]) -> RunSpec:
    """Return a run with the baseline's sizes in branches of another kind.

    Sizes in `given` paths and sizes against the rules are not changed. Otherwise, choices of plugins would have their
    default number of heads at every size.
    """
    base = baseline.model.resolved().layers_by_kind
    for kind_path, kind in given.items():
        at, _, leaf = kind_path.rpartition(".")
        where, _, axis = at.rpartition(".")
        if leaf != "kind" or axis not in ("attention", "feedforward"):
            continue
        old = getattr(base.get(where.rpartition(".")[2], base["default"]), axis)
        if old.kind == kind:
            continue
        for field in SIZES:
            value, path = getattr(old, field, None), f"{at}.{field}"
            ratio = [f"{at}.ratio=none"] * (field == "hidden_dim" and f"{at}.ratio" not in given)
            if value is None or path in given:
                continue
            with suppress(UserError):  # the previous value may break a rule
                sizes = flatten(run.model.resolved().model_dump())
                if sizes.get(path.removeprefix("model."), value) == value:
                    continue
            with suppress(UserError):
                changed = run.override(f"{path}={value}", *ratio)
                enforce(changed.model)
                run = changed
    return run


def _named(complaints: Mapping[str, Sequence[str]], number: int) -> Iterator[str]:
    """Prefix complaints with the names of variants, unless they concern all."""
    for line, names in complaints.items():
        if len(names) == number:
            yield line
        else:
            yield from (line if name in line else f"{name}: {line}" for name in names)


def _decided_otherwise(study: StudySpec) -> Iterator[str]:
    """Refuse ineffective keys: those decided by the study, and one variant's machine."""
    words = [*study.common, *study.baseline, *(w for v in study.variants.values() for w in v)]
    for key in (run_key(word).partition("=")[0] for word in words if "=" in word):
        if key in DECIDED:
            option = f"give {DECIDED[key]}" if DECIDED[key] else "leave it out"
            yield f"{key}: decided by the study, for all its runs; {option}"
    for name, given in study.variants.items():
        for key in (run_key(word).partition("=")[0] for word in given if "=" in word):
            if key.startswith("machine.") and key not in DECIDED:
                yield (
                    f"{name}: {key}: all variants are trained by one machine; say it once for all, {key}=..., as a "
                    "word of its own"
                )


def _ended_early(found: Mapping[str, RunSpec]) -> Iterator[str]:
    """Refuse early stopping: variants are compared at equal tokens."""
    patience = {run.early_stop.patience for run in found.values() if run.early_stop.patience}
    if patience:
        yield (
            f"early_stop.patience: found {max(patience)}; a study compares runs of equal length, so none of them may "
            "end early: leave it out, or lower --budget"
        )


def _forbidden(found: Mapping[str, RunSpec], study: StudySpec) -> Iterator[str]:
    """Refuse differences between variants that make losses incomparable."""
    (_, baseline), *others = found.items()
    wanted = baseline.objective.kind
    for name, run in others:
        if run.objective.kind != wanted:
            yield (
                f'{name}: objective: "{run.objective.kind}" where the baseline has "{wanted}": all variants are '
                "trained and judged alike in this; say it once for all, objective.kind=..., as a word of its own"
            )
            continue
        lines = {line.partition(":")[0]: line for line in diff(baseline, run)}
        for path, line in lines.items():
            if path.startswith("data.task.") and "data.text" in lines:
                continue  # the options follow from the text
            varied = path.split(".")[0] in VARIED or path.startswith("data.tokenizer.")
            if not varied or path in ("model.vocab_size", "model.context_length"):
                yield (
                    f"{name}: {line}: all variants are trained and judged alike in this; say it once for all, "
                    f"{path}=..., as a word of its own"
                )


def with_lr(run: RunSpec, lr: float) -> RunSpec:
    """Return a run with another peak learning rate; a second one keeps its ratio."""
    return run.model_copy(update={"optimizer": run.optimizer.with_peak_lr(lr)})
