"""From words to a study, and back to the command line that asks for it."""

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
"""Options of the command that are no fields of a study."""

SIZE_OF_WIDTHS = "0.05M"
"""Size by which texts, batches and layers of a study of widths are chosen where it says none."""


def study_of(
    *words: str | StudySpec | Mapping[str, Any], parts: tuple[PartsFile, ...] = (), **options: Any
) -> StudySpec:
    """Return the study that words ask for; see `compare`."""
    studies = [word for word in words if isinstance(word, StudySpec)]
    texts = assignments_of(*(word for word in words if not isinstance(word, StudySpec)))
    names: list[str | StudySpec] = [*studies, *filter(is_variant, texts)]
    common = [word for word in texts if not is_variant(word)]
    for word in common:  # an option that is written like a key of a run: seeds=5
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
    """Return a study of widths: each seed sweeps, nothing is matched, and the size sets no width."""
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
    """The command line of a study, and those of studies that follow from it."""

    study: StudySpec
    folder: Path
    out: str | Path | None = None
    parts: Sequence[str | Path] = ()
    where: Sequence[str] = ()
    runs: str | Path = POOL
    file: str = ""
    """The user's own file of the study, if there is one."""

    def __str__(self) -> str:
        return self.again()

    def again(self, *, elsewhere: bool = False, **changes: Any) -> str:
        """Return the command with fields of the study changed.

        Args:
            elsewhere: Name a new folder, as this one would refuse the study.
        """
        study = self.study.model_copy(update=changes)
        default, words = StudySpec(), [label(study.baseline)]
        if study.name in study_names() and _goes_on_from(study, load_study(study.name)):
            default, words = load_study(study.name), [study.name]
        elif self.file:
            default, words = load_study(self.file), [self.file]
        elif all(name == label(given) for name, given in study.variants.items()):
            words += [
                (f":{label(given)}" if "=" in given[0] else label(given))
                for given in study.variants.values()
            ]
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
                else:
                    listed = (
                        ",".join(map(str, value)) or "none" if isinstance(value, tuple) else value
                    )
                    words += [f"--{flag}", str(listed)]
        for file in self.parts:
            words += ["--parts", str(file)]
        out = free_name(Path(self.out or self.folder)) if elsewhere else self.out
        if out:
            words += ["--out", str(out)]
        if Path(self.runs) != POOL:
            words += ["--runs", str(self.runs)]
        return shlex.join(["archwright", "compare", *words, *self.where])

    def again_from(self, name: str, key: str) -> str:
        """Return the command with a key of one variant set; of all without `name`, or if variants have names."""
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
    """Tell whether a study is one that comes along, with options and keys of its own: no copy that was edited."""
    free = {*OPTIONS, "common", "parts", "ends"}
    own = {run_key(word).partition("=")[0] for word in study.common}
    kept = {run_key(word).partition("=")[0] for word in shipped.common} <= own
    return kept and study.model_dump(exclude=free) == shipped.model_dump(exclude=free)


def absolute(part: str | Path) -> Path:
    """Return the absolute path of a file or folder of choices; the name of an installed module as it is."""
    path = Path(part)
    return path.resolve() if path.exists() or path.suffix == ".py" else path


def load(files: Sequence[Path]) -> tuple[PartsFile, ...]:
    """Let choices in files join the package's; return what a study records of the files."""
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
    found = [tuple(split(str(name))) for name in rest]
    for i, variant in enumerate(found):
        if variant in found[:i] or variant == tuple(split(str(first))):
            raise UserError(f'"{rest[i]}" is named twice; there is nothing to compare')
    named = {label(words): words for words in found}
    return StudySpec(baseline=tuple(split(str(first))), variants=named)
