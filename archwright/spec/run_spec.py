"""A training run: a model, its data and its training."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from archwright.spec.budget import Budget
from archwright.spec.choice import AutoTokens, OptionalFloat, Spec, Steps, Tokens
from archwright.spec.data import PAIRS_OBJECTIVE, SYNTHETIC, DataSpec, TokenizerSpec
from archwright.spec.errors import nearest
from archwright.spec.fingerprint import fingerprint
from archwright.spec.machine import MachineSpec
from archwright.spec.model_spec import ModelSpec
from archwright.spec.objectives import NextToken, Objective
from archwright.spec.optimizers import AdamW, Optimizer
from archwright.spec.scale import ScaleSpec
from archwright.spec.schedules import Cosine, Schedule
from archwright.spec.shown import Shown

LOGGERS = ("csv", "tensorboard", "wandb")
"""Destinations of a run's metrics in addition to its metrics.jsonl."""


def _as_loggers(value: object) -> Any:
    """Read `csv,wandb` from the command line, and "none"; refuse unknown loggers."""
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)):
        return value
    if [*names] == ["none"]:
        return ()
    for name in names:
        if name not in LOGGERS:
            hint = nearest(str(name), LOGGERS)
            raise ValueError(f"expected csv, tensorboard, wandb or none{hint and f'.{hint}'}")
    return tuple(dict.fromkeys(names))


Loggers = Annotated[
    tuple[Literal["csv", "tensorboard", "wandb"], ...],
    BeforeValidator(_as_loggers),
    Field(strict=False),
]


OptionalSize = Annotated[int, Field(ge=1, le=10**15)] | Literal["none"]


class EvaluateSpec(Spec):
    """Evaluation on the held-out text."""

    every: int = Field(0, ge=0, le=10**12)
    """Steps between evaluations; 0: ten per run, and at its end."""
    max_tokens: Steps = 20_000
    """Tokens of an evaluation during training."""
    final_max_tokens: Steps = 2_000_000
    """Most tokens of the final evaluation."""
    max_bytes: OptionalSize = "none"
    """Bytes of an evaluation during training, instead of tokens: the same texts for every tokenizer."""
    final_max_bytes: OptionalSize = "none"
    """Bytes of the final evaluation, instead of tokens."""
    stride: AutoTokens = "auto"
    """Tokens between the starts of overlapping windows; auto: half the context."""
    lengths: Annotated[tuple[Tokens, ...], Field(strict=False)] = ()
    """Further text lengths, in tokens, for repetitions of the final evaluation without overlap."""

    @property
    def final_bytes(self) -> int | None:
        """`final_max_bytes` as a number; None for "none"."""
        return None if self.final_max_bytes == "none" else self.final_max_bytes


class EarlyStopSpec(Spec):
    """Early stopping if the held-out loss stops falling (Prechelt, 1998)."""

    patience: int = Field(0, ge=0, le=10**12)
    """Consecutive evaluations without a new lowest held-out loss that end a run; 0: never."""
    min_delta: float = Field(0.0, ge=0, examples=[0.001])
    """Least improvement of the lowest held-out loss, in nats per token."""
    restore_best: bool = True
    """True if a stopped run keeps the weights of its lowest held-out loss instead of its last step's."""


class CheckpointSpec(Spec):
    """Checkpoints to resume from."""

    every: int = Field(0, ge=0, le=10**12)
    """Steps between checkpoints; 0: about one per minute, or fewer so that they take at most 2 % of the time."""
    keep: Steps = 2
    """Number of newest checkpoints to keep."""


class ProbesSpec(Spec):
    """Measurements inside the model during training, without effect on it."""

    every: int = Field(0, ge=0, le=10**12)
    """Steps between measurements of gradients, updates, attention and activations; 0: never."""


class InitFrom(Spec):
    """Initial weights."""

    from_: str = Field("", alias="from")
    """A run folder or a folder with model.safetensors; empty: random weights."""


class PartsFile(Spec):
    """A file with choices from outside the package that a run uses."""

    name: str
    sha256: str


class RunSpec(Shown):
    """A training run. Dotted keys reach every value: `model.dim`, `optimizer.lr`, `data.text`."""

    not_results: ClassVar[frozenset[str]] = frozenset(
        {"name", "machine", "scale", "loggers", "probes"}
    )
    name: str = ""
    """Name of the run; its folder is runs/NAME."""
    model: ModelSpec = ModelSpec()
    data: DataSpec = DataSpec()
    objective: Objective = NextToken()
    batch_size: Tokens = 16
    """Sequences per step, each of model.context_length tokens."""
    grad_accum_steps: Tokens = 1
    """Microbatches per step, to save memory; their gradients are summed."""
    budget: Budget = Budget("3m")
    """Training budget: wall time, steps, tokens or FLOPs."""
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Cosine()
    max_grad_norm: OptionalFloat = 1.0
    """Largest gradient norm; larger gradients are scaled down to it."""
    z_loss: float = Field(0.0, ge=0, examples=[1e-4])
    """Weight of the mean square of log Z, which prevents drift of logits (PaLM, section 5)."""
    label_smoothing: float = Field(0.0, ge=0, lt=1, examples=[0.1])
    """Share of a target's weight spread over all tokens in the training loss; reported losses omit it (Szegedy et al.,
    2016, section 7; Vaswani et al., 2017, section 5.4)."""
    evaluate: EvaluateSpec = EvaluateSpec()
    early_stop: EarlyStopSpec = EarlyStopSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    probes: ProbesSpec = ProbesSpec()
    init: InitFrom = InitFrom()
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of initial values, data order and dropout."""
    loggers: Loggers = ()
    """Destinations of metrics in addition to metrics.jsonl: csv, tensorboard, wandb (the last two with extras of these
    names)."""
    machine: MachineSpec = MachineSpec()
    scale: ScaleSpec = ScaleSpec()
    parts: Annotated[tuple[PartsFile, ...], Field(strict=False)] = ()

    @classmethod
    def implied(cls, over: dict[str, Any]) -> dict[str, Any]:
        """Return overrides with implied values: pairs imply their objective, and the reverse."""
        data, objective = over.get("data", {}), over.get("objective", {})
        if not isinstance(data, dict) or not isinstance(objective, dict):
            return over
        kind = objective.get("kind")
        if kind is None and data.get("pairs"):
            over = over | {"objective": objective | {"kind": PAIRS_OBJECTIVE}}
        elif kind == PAIRS_OBJECTIVE and not {"pairs", "text"} & data.keys():
            data = data | {"pairs": SYNTHETIC}
        return over | {"data": DataSpec.implied(data)} if data else over

    @property
    def tokenizer(self) -> TokenizerSpec:
        """Tokenizer of `data`, with the objective's special tokens."""
        asked = self.data.tokenizer
        tokens = dict.fromkeys((*asked.special_tokens, *self.objective.special_tokens))
        return asked.model_copy(update={"special_tokens": tuple(tokens)})

    @property
    def second_task(self) -> str:
        """Name of a second task in addition to the reported loss; empty if there is none."""
        return self.objective.second_task

    @property
    def second_cases(self) -> str:
        """Unit of the second task: row or token."""
        return self.objective.second_cases

    @property
    def tokens_per_step(self) -> int:
        """Training tokens per step."""
        return self.batch_size * self.model.context_length

    @property
    def flops_evidence(self) -> str:
        """Evidence of FLOPs counted from whole windows; an upper bound if rows hold shorter texts."""
        shorter = self.data.packing == "document_mask" or self.objective.has_pairs
        return "upper bound" if shorter else "counted"

    def __repr__(self) -> str:
        model, rate = self.model, f"lr {self.optimizer.peak_lr:g}"
        return (
            f"RunSpec({self.name or 'run'}: {model.name or 'a model'} of dim {model.dim} and {model.num_layers} "
            f"layers on {', '.join(self.data.texts)}, batches of {self.batch_size} x {model.context_length} tokens, "
            f"{self.optimizer.kind} {rate}, {self.schedule.kind}, budget {self.budget})"
        )

    def hash(self) -> str:
        """Return a stable hash of model, data and training, without the machine."""
        return fingerprint(self)
