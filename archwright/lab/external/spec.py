"""Settings of a study over the runs of another trainer."""

import hashlib
import math
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import AfterValidator, BeforeValidator, Field

from archwright.lab.external.command import Template
from archwright.lab.external.metric import metric_of
from archwright.spec.budget import Budget
from archwright.spec.errors import UserError
from archwright.spec.merge import validated
from archwright.spec.overrides import assignments_of
from archwright.spec.run_spec import Texts
from archwright.spec.study_spec import StudySpec, Words
from archwright.spec.toml import read_toml

UNFIT = (
    *("size", "match", "widths", "lengths", "evaluation_tokens", "parallelism", "tune_baseline"),
    *("procedure", "baseline", "common", "parts", "ends", "margin_of_compute"),
)
"""Fields of a study that describe models built by archwright."""
FREE = ("name", "question", "source", "timeout", "code", "check_steps")
"""Fields that may change between two starts of a study."""


def _as_table(value: object) -> Any:
    """Read variants as a list of values or a table of names and values; the first is the baseline."""
    if isinstance(value, (list, tuple)):
        texts = [str(item) for item in value]
        if twice := [text for i, text in enumerate(texts) if text in texts[:i]]:
            raise ValueError(f'"{twice[0]}" only once')
        value = {text: text for text in texts}
    return value


def _several(variants: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    if len(variants) < 2:
        raise ValueError("a baseline and one or more variants")
    if listed := [name for name, words in variants.items() if len(words) > 1]:
        raise ValueError(f"one value of {listed[0]}")
    return variants


def _as_seconds(value: object) -> Any:
    """Read a time such as `90m`."""
    return Budget(value).seconds if isinstance(value, str) else value


class ExternalSpec(StudySpec):
    """A study over the runs of a command or a Python function."""

    command: str = ""
    """Command of one run, with {variant}, {seed}, {out} and, if the trainer has such options, {lr} and {steps}. It is
    split into words and filled without a shell; {{ is a brace. {steps} must also set the end of the learning-rate
    schedule."""
    variants: Annotated[dict[str, Words], BeforeValidator(_as_table), AfterValidator(_several)] = (
        Field(default_factory=dict)
    )
    """Values of {variant}, such as paths of config files; the first is the baseline."""
    metric: str = ""
    """Place of the loss: stdout:REGEX (a group around the number), jsonl:FILE:KEY or csv:FILE:COLUMN, with FILE inside
    {out}. The last match counts. Groups or fields called step and tokens give curves."""
    steps: int | None = Field(None, ge=1)
    """Steps of a run."""
    lr: float | None = Field(None, gt=0)
    """Learning rate at which tuning starts."""
    maximize: bool = False
    """Higher values of the metric are better."""
    unit: str = ""
    """Unit of the metric, such as "nats per token"."""
    timeout: Annotated[float | None, BeforeValidator(_as_seconds)] = Field(None, gt=0)
    """Time after which a run has failed, such as 90m."""
    diverged_exit: int | None = Field(None, ge=1, le=255)
    """Exit status of a run that diverged. A metric that is not finite also means divergence."""
    cost_per_step: dict[str, float] = Field(default_factory=dict)
    """Compute of a step by variant, in any unit. Default: the same for all variants."""
    code: Texts = ()
    """Files of the trainer; runs of changed files do not count. Files that the command names always belong to them."""
    shell: bool = False
    """Run the command by /bin/sh."""
    check_steps: int | None = Field(None, ge=0)
    """Steps of the short run before the study that looks for the metric; 0: none. Default: a twentieth of the steps."""

    @property
    def template(self) -> Template:
        """Parsed command."""
        return Template(self.command, self.shell)

    @property
    def values(self) -> dict[str, str]:
        """Value of {variant} by name."""
        return {name: words[0] for name, words in self.variants.items()}

    @property
    def masked(self) -> dict[str, Any]:
        """Values that are not defaults, without secrets."""
        values = self.model_dump(mode="json", exclude_defaults=True)
        values["variants"] = self.values
        if self.command:
            values["command"] = self.template.masked
        return values

    def toml(self) -> str:
        """Return the study as a file, without secrets."""
        return tomli_w.dumps(self.masked)


@dataclass(frozen=True)
class Limits:
    """Resources and bounds of one start of a study."""

    jobs: int = 0
    """Concurrent runs; 0: one, or one for each group of GPUs."""
    gpus_per_job: int = 0
    max_runs: float = math.inf
    seconds: float = math.inf


def is_external(path: str) -> bool:
    """True if a TOML file is a study over another trainer."""
    return path.endswith(".toml") and Path(path).is_file() and "command" in read_toml(Path(path))


def read(file: str, given: Mapping[str, Any]) -> tuple[ExternalSpec, str]:
    """Return the study of a file and of options, and its time budget.

    Raises:
        UserError: One line for each mistake.
    """
    values: dict[str, Any] = dict(read_toml(Path(file))) if file else {}
    values |= {name: value for name, value in given.items() if value is not None}
    budget = str(values.pop("budget", ""))
    if file:
        values.setdefault("name", Path(file).stem)
    lines = [
        f"--{name.replace('_', '-')}: not an option of a study with --command, whose models are not known"
        for name in UNFIT
        if name in values
    ]
    if lines:
        raise UserError(*lines)
    if isinstance(values.get("cost_per_step"), list):
        values["cost_per_step"] = _costs(values["cost_per_step"])
    texts = {n: v for n, v in values.items() if isinstance(v, str) and n in StudySpec.model_fields}
    plain = {name: value for name, value in values.items() if name not in texts}
    plain |= {name: texts.pop(name) for name in ("name", "question", "source") if name in texts}
    plain |= {n: int(v) if isinstance(v, float) and n == "steps" else v for n, v in plain.items()}
    spec = validated(ExternalSpec, plain)
    if texts:  # as words of the command line have them: --seeds 5
        spec = spec.override(*assignments_of(texts))
    if spec.command:
        _check(spec)
    given_rate = spec.lr is not None and ("lr" in spec.template.names or not spec.command)
    update: dict[str, Any] = {"match": "none", "tune_lr": spec.tune_lr and given_rate}
    update["horizons"] = spec.horizons if spec.steps else ()
    if not spec.name:
        names = [Path(value).stem or name for name, value in spec.values.items()]
        update["name"] = "-".join(names[:3])
    return spec.model_copy(update=update), budget


def _check(spec: ExternalSpec) -> None:
    """Refuse settings that do not fit the command."""
    names = spec.template.names
    for name in ("lr", "steps"):
        if (getattr(spec, name) is None) == (name in names):
            there = f"{{{name}}} in the command" if name in names else f"--{name}"
            other = f"--{name}" if name in names else f"{{{name}}} in the command"
            raise UserError(f"--{name}: found {there} without {other}; expected both or neither")
    if not spec.metric:
        raise UserError("--metric: expected stdout:REGEX, jsonl:FILE:KEY or csv:FILE:COLUMN")
    metric_of(spec.metric)
    if not spec.variants:
        raise UserError("--variants: expected a baseline and one or more variants")
    unknown = [name for name in spec.cost_per_step if name not in spec.variants]
    missing = [name for name in spec.variants if name not in spec.cost_per_step]
    if unknown or (spec.cost_per_step and missing):
        what = f"{unknown[0]}, no variant" if unknown else f"no cost of {missing[0]}"
        raise UserError(f"--cost-per-step: found {what}; expected VARIANT=X for each variant")


def _costs(words: Sequence[str]) -> dict[str, float]:
    costs = {}
    for word in words:
        name, _, text = word.rpartition("=")
        try:
            costs[name] = float(text)
        except ValueError:
            name = ""
        if not name or not 0 < costs[name] < math.inf:
            raise UserError(f'--cost-per-step: found "{word}"; expected VARIANT=X, a cost above 0')
    return costs


def content_of(value: str) -> str:
    """Return the hash of a variant: of the file that it names, else of the text."""
    path = Path(value)
    return hashed(path.read_bytes() if path.is_file() else value.encode())


def code_of(spec: ExternalSpec) -> str:
    """Return the hash of the trainer: its files, and the git commit of the current folder.

    Raises:
        UserError: A file of --code is missing.
    """
    variants = set(spec.values.values())
    words = spec.template.words if spec.command else ()
    named = [word for word in words if word not in variants and Path(word).suffix]
    files = [Path(word) for word in named if Path(word).is_file()]
    for name in spec.code:
        path = Path(name)
        if not path.exists():
            raise UserError(f"--code: {name}: no such file or folder")
        files += sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    commit = ""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
        commit = found.stdout.strip() if found.returncode == 0 else ""
    except OSError:
        pass
    parts = [commit, *(f"{path}:{hashed(path.read_bytes())}" for path in dict.fromkeys(files))]
    return hashed("\n".join(parts).encode())


def hashed(content: bytes) -> str:
    """Return a short SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]
