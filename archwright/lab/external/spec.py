"""Settings of a study over the runs of another trainer."""

import hashlib
import math
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import AfterValidator, BeforeValidator, Field

from archwright.lab.external.command import Template, masked
from archwright.lab.external.metric import metric_of
from archwright.spec.budget import Budget
from archwright.spec.data import Texts
from archwright.spec.errors import UserError
from archwright.spec.merge import validated
from archwright.spec.study_spec import OPTIONS, StudySpec, Words
from archwright.spec.toml import read_toml

UNFIT = (
    *("size", "match", "widths", "lengths", "evaluation_tokens", "parallelism"),
    *("baseline", "common", "parts", "ends"),
)
"""Fields of a study that describe models built by archwright."""
FREE = ("name", "question", "source", "timeout", "code", "check_steps")
"""Fields that may change between two starts of a study."""


def _as_table(value: object) -> Any:
    """Read variants from a list of values or a table of names and values."""
    if isinstance(value, (list, tuple)):
        texts = [str(item) for item in value]
        if twice := [text for i, text in enumerate(texts) if text in texts[:i]]:
            raise ValueError(f'"{twice[0]}" only once')
        value = {text: text for text in texts}
    return value


def _several(variants: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    if len(variants) == 1:  # none: those of a CSV file
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

    given: tuple[int, ...] = ()
    """Seeds of existing losses, read from a table."""

    @property
    def template(self) -> Template:
        """Parsed command."""
        return Template(self.command, self.shell)

    @property
    def seed_numbers(self) -> Any:
        """Compared seeds."""
        return self.given or super().seed_numbers

    @property
    def values(self) -> dict[str, str]:
        """Value of {variant} by name."""
        return {name: words[0] for name, words in self.variants.items()}

    @property
    def masked(self) -> dict[str, Any]:
        """Values that are not defaults, without secrets."""
        values = self.model_dump(mode="json", exclude_defaults=True, exclude={"match"})
        values["variants"] = self.values
        if self.command:
            values["command"] = masked(self.command, self.template.words)
        return values

    def toml(self) -> str:
        """Return the study as a file, without secrets."""
        return tomli_w.dumps(self.masked)


def is_external(path: str) -> bool:
    """True if a TOML file is a study over another trainer."""
    return path.endswith(".toml") and Path(path).is_file() and "command" in read_toml(Path(path))


def read(file: str, options: Mapping[str, Any]) -> tuple[ExternalSpec, float]:
    """Return the study of a file and of options, and its time budget in seconds.

    Raises:
        UserError: One line for each mistake.
    """
    values: dict[str, Any] = {"name": Path(file).stem, **read_toml(Path(file))} if file else {}
    values |= {name: value for name, value in options.items() if value is not None}
    seconds = _seconds(str(values.pop("budget", "")))
    for name in UNFIT:
        if name in values:
            flag = name.replace("_", "-")
            raise UserError(
                f"--{flag}: not an option of another trainer, whose models are not known"
            )
    if isinstance(values.get("cost_per_step"), list):
        values["cost_per_step"] = _costs(values["cost_per_step"])
    # As the command line has them: --seeds 5
    texts = {n: v for n, v in values.items() if isinstance(v, str) and n in OPTIONS}
    spec = validated(ExternalSpec, {n: v for n, v in values.items() if n not in texts})
    spec = spec.override(*(f"{name}={text}" for name, text in texts.items())) if texts else spec
    if spec.command:
        _check(spec)
    tune_lr = spec.tune_lr and spec.lr is not None
    name = spec.name or "-".join(Path(value).stem or name for name, value in spec.values.items())
    update = {"match": "none", "tune_lr": tune_lr, "name": name[:60]}
    spec = spec.model_copy(update={**update, "horizons": spec.horizons * bool(spec.steps)})
    spec.check_margin()
    return spec, seconds


def _seconds(budget: str) -> float:
    try:
        seconds = Budget(budget).seconds if budget else math.inf
    except ValueError:
        seconds = None
    if seconds is None:
        raise UserError(
            f'--budget: found "{budget}"; expected a time such as 10h, with --steps for a run'
        )
    return seconds


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
    """Return the hash of a variant: of its file if it is a path, else of its text."""
    path = Path(value)
    return hashed(path.read_bytes() if path.is_file() else value.encode())


def code_of(spec: ExternalSpec) -> str:
    """Return the hash of the trainer's files and of the current git commit.

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
