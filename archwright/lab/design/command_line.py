"""Studies from command-line words, and command lines from studies."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archwright.lab.design.plan import STUDY, slug
from archwright.lab.design.plan_file import free_name
from archwright.lab.design.variants import is_variant, label, run_key, split
from archwright.lab.running.run_cache import POOL
from archwright.spec.errors import UserError, nearest
from archwright.spec.overrides import assignments_of, toml_value
from archwright.spec.read import load_study, preset_names, study_names
from archwright.spec.run_spec import PartsFile
from archwright.spec.study_spec import OPTIONS, StudySpec

Words = tuple[str, ...]

OTHERS = ("add_seeds", "on", "out", "runs", "slurm", "workers")
"""Options of the command outside the fields of a study."""

SIZE_OF_WIDTHS = "0.2M"
"""Default size of a study of widths; its context, batch size, depth and 4 heads are used at each width."""


def study_of(
    *words: str | StudySpec | Mapping[str, Any], parts: tuple[PartsFile, ...] = (), **options: Any
) -> StudySpec:
    """Return the study for words and options of `compare`."""
    studies = [word for word in words if isinstance(word, StudySpec)]
    texts = assignments_of(*(word for word in words if not isinstance(word, StudySpec)))
    names: list[str | StudySpec] = [*studies, *filter(is_variant, texts)]
    common = [word for word in texts if not is_variant(word)]
    for word in common:  # an option written as a key of a run: seeds=5
        key, _, value = word.partition("=")
        name = "first_seed" if key == "seed" else key.replace("-", "_")
        if name in OPTIONS or name in OTHERS:
            raise UserError(
                f"{word}: an option of the study; give --{name.replace('_', '-')} {value}"
            )
    study = _named_study(names, common)
    common = [run_key(word) for word in common]
    assignments = [
        f"{key}={value if isinstance(value, str) else toml_value(value)}"
        for key, value in options.items()
        if value is not None
    ]
    if common:
        given = {word.partition("=")[0] for word in common}
        kept = [word for word in study.common if run_key(word).partition("=")[0] not in given]
        study = study.model_copy(update={"common": (*kept, *common)})
    study = _with_widths(study.override(*assignments) if assignments else study)
    name = study.name or slug("-".join([label(study.baseline), *study.variants]))
    return study.model_copy(update={"name": name, "parts": parts})


def _with_widths(study: StudySpec) -> StudySpec:
    """Return a study with the settings of a study of widths, if it has any."""
    if not study.widths:
        return study
    if not study.tune_lr:
        raise UserError(
            "--widths: found --no-tune-lr; a study of widths tunes learning rates: leave it out"
        )
    words = (*study.common, *study.baseline, *(w for v in study.variants.values() for w in v))
    if dims := [word for word in words if run_key(word).startswith("model.dim=")]:
        raise UserError(f"--widths: found {dims[0]} beside it; expected the width in one of them")
    size = SIZE_OF_WIDTHS if study.size == "auto" else study.size
    return study.model_copy(update={"match": "none", "size": size})


@dataclass(frozen=True)
class Command:
    """Command line of a study and of its modifications."""

    study: StudySpec
    folder: Path
    out: str | Path | None = None
    parts: Sequence[str | Path] = ()
    where: Sequence[str] = ()
    runs: str | Path = POOL
    file: str = ""
    """User's file of the study, if any."""

    def __str__(self) -> str:
        return self.again()

    def again(self, *, elsewhere: bool = False, **changes: Any) -> str:
        """Return the command with `changes` of the study's fields, `elsewhere` in a new folder."""
        study = self.study.model_copy(update=changes)
        default, words = StudySpec(), [label(study.baseline)]
        if study.name in study_names() and _goes_on_from(study, load_study(study.name)):
            default, words = load_study(study.name), [study.name]
        elif self.file:
            default, words = load_study(self.file), [self.file]
        elif all(name == label(given) for name, given in study.variants.items()):
            variants = study.variants.values()
            words += [":" * ("=" in variant[0]) + label(variant) for variant in variants]
        else:
            default, words = self.study, [str(self.folder / STUDY)]
        words += [word for word in study.common if word not in default.common]
        for name in OPTIONS:
            value = getattr(study, name)
            # An advised budget is shown, also if it is the default.
            if value != getattr(default, name) or (name == "budget" and name in changes):
                flag = name.replace("_", "-")
                if isinstance(value, bool):
                    words.append(f"--{flag}" if value else f"--no-{flag}")
                elif isinstance(value, tuple):
                    words += [f"--{flag}", ",".join(map(str, value)) or "none"]
                else:
                    words += [f"--{flag}", str(value)]
        for file in self.parts:
            words += ["--parts", str(file)]
        out = free_name(Path(self.out or self.folder)) if elsewhere else self.out
        if out:
            words += ["--out", str(out)]
        if Path(self.runs) != POOL:
            words += ["--runs", str(self.runs)]
        return shlex.join(["archwright", "compare", *words, *self.where])

    def again_from(self, name: str, key: str) -> str:
        """Return the command with a key set for variant `name`, or for all if that is impossible."""
        study, changed = self.study, run_key(key).partition("=")[0]

        def with_key(words: Words) -> Words:
            return (*(w for w in words if run_key(w).partition("=")[0] != changed), key)

        named = any(variant != label(words) for variant, words in study.variants.items())
        if not name or named or self.file or study.name in study_names():
            return self.again(elsewhere=True, common=with_key(study.common))
        every = {label(study.baseline): study.baseline, **study.variants}
        every[name] = with_key(every[name])
        baseline, *variants = every.values()
        changes = {"baseline": baseline, "variants": {label(words): words for words in variants}}
        return self.again(elsewhere=self.out is not None, **changes)


def _goes_on_from(study: StudySpec, shipped: StudySpec) -> bool:
    """True if only options and common keys differ from the shipped study."""
    free = {*OPTIONS, "common", "parts", "ends"}
    keys, required = (
        {run_key(word).partition("=")[0] for word in s.common} for s in (study, shipped)
    )
    same = study.model_dump(exclude=free) == shipped.model_dump(exclude=free)
    return required <= keys and same


def absolute(part: str | Path) -> Path:
    """Return the absolute path of a plugin's file or folder; a module's name is unchanged."""
    path = Path(part)
    return path.resolve() if path.exists() or path.suffix == ".py" else path


def load(files: Sequence[Path]) -> tuple[PartsFile, ...]:
    """Register the choices in files; return the study's record of the files."""
    if not files:
        return ()
    from archwright.plugins import load_parts_file

    return tuple(PartsFile(name=file.name, sha256=load_parts_file(file)) for file in files)


def _named_study(names: Sequence[str | StudySpec], common: Sequence[str]) -> StudySpec:
    if ":" in names:
        raise UserError('":": expected a change right behind the colon, such as :norm.kind=layer')
    if not names:
        raise UserError(
            "compare what? Name two models or more, or a study, such as: archwright compare textbook modern"
        )
    first, *rest = names
    if isinstance(first, StudySpec):
        if rest:
            raise UserError("a study names its variants itself; leave out the others")
        return first
    if not rest and (first in study_names() or str(first).endswith(".toml")):
        return load_study(str(first))
    changes = [word for word in common if run_key(word).startswith("model.")]
    if not rest and changes and first not in study_names():
        raise UserError(
            f'compare "{first}" with what? A change that makes a variant begins with a colon: '
            f"archwright compare {first} :{changes[0]}"
        )
    alike = nearest(str(first), study_names())
    if not rest and alike and str(first) not in preset_names("models"):
        raise UserError(f'"{first}": no such model or study; see archwright list.{alike}')
    if not rest:
        raise UserError(
            f'compare "{first}" with what? Name a second model, or one of the studies '
            f"{', '.join(study_names())}."
        )
    if studies := [name for name in names if name in study_names()]:
        raise UserError(
            f'"{studies[0]}" is a study, which names its variants itself; leave out the others'
        )
    baseline, *variants = (tuple(split(str(name))) for name in names)
    for i, variant in enumerate(variants):
        if variant in (*variants[:i], baseline):
            raise UserError(f'"{rest[i]}" is named twice; there is nothing to compare')
    return StudySpec(baseline=baseline, variants={label(words): words for words in variants})
