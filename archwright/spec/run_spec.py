"""A training run: a model, its data and its training."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from archwright.spec.budget import Budget
from archwright.spec.choice import (
    AutoCount,
    AutoFloat,
    AutoSteps,
    AutoTokens,
    Choice,
    OptionalFloat,
    Spec,
    Steps,
    Tokens,
)
from archwright.spec.errors import nearest
from archwright.spec.fingerprint import fingerprint
from archwright.spec.model_spec import ModelSpec
from archwright.spec.objectives import NextToken, Objective
from archwright.spec.overrides import dump
from archwright.spec.scale import ScaleSpec
from archwright.spec.shown import Shown
from archwright.spec.tasks import Documents, Task


def _as_list(value: object) -> Any:
    return (value,) if isinstance(value, str) else value


def _recordable(name: str) -> str:
    """Refuse file names that are not UTF-8, like the run's spec."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(
            "a name in UTF-8, as a run records it: rename the file, or name the folder above it"
        ) from None
    return name


Recordable = Annotated[str, AfterValidator(_recordable)]
Texts = Annotated[tuple[Recordable, ...], BeforeValidator(_as_list), Field(strict=False)]


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

NO_TASK = "none"
"""Kind of the task "none": the run trains on documents."""
STDLIB = "stdlib"
"""Text that is always available."""
PAIRS_OBJECTIVE = "sequence_to_sequence"
"""Kind of the objective for pairs."""
SYNTHETIC = "synthetic"
"""Pairs that are always available."""


class TokenizerSpec(Spec):
    """Tokenizer of a run."""

    kind: Literal["bpe", "bytes", "file"] = "bpe"
    """bpe: byte-level BPE trained on the text; bytes: raw bytes; file: a tokenizer.json."""
    vocab_size: int = Field(4096, ge=257, le=2**24)
    """Number of tokens of a trained BPE, including special tokens."""
    path: Recordable = ""
    """Path of a tokenizer.json, for kind "file"."""
    end_of_text: str = Field("<|endoftext|>", min_length=1)
    """Token at the start of every document."""
    special_tokens: Texts = ()
    """Further tokens that encoding a text never produces."""


class DataSpec(Spec):
    """Training text, its split, and its packing into batches."""

    text: Annotated[Texts, Field(min_length=1)] = (STDLIB,)
    """Files (plain text, .jsonl, .parquet), folders, globs, `-` for standard input, `stdlib`: Python's own source,
    `datasets:NAME[:CONFIG][@SPLIT]`, or a synthetic task by its name, such as `mqar`."""
    pairs: Recordable = Field("", examples=[SYNTHETIC])
    """Pairs of a source and a target for an encoder-decoder, instead of `text`: a .tsv or .jsonl file (`source`,
    `target`), or `synthetic`: sentences of two made-up languages."""
    held_out: Texts = ()
    """Texts, or files of pairs, to evaluate on; empty: one document in ten of `text`, by hash."""
    field: str = "text"
    """Text field of a JSONL record, or text column of a table."""
    separator: str = ""
    """Separator of documents inside a plain text file; empty: one document per file."""
    errors: Literal["strict", "replace"] = "strict"
    """Bytes that are not UTF-8. strict: refuse them; replace: read them as U+FFFD."""
    tokenizer: TokenizerSpec = TokenizerSpec()
    packing: Literal["concat", "document_mask"] = "concat"
    """concat: pack documents end to end; document_mask: also hide them from one another, with positions per
    document."""
    task: Task = Documents()
    """Synthetic task named by `text`, with its options."""

    @classmethod
    def implied(cls, over: dict[str, Any]) -> dict[str, Any]:
        """Add implied values: a new text drops pairs and sets the task, new pairs reset the text, and a new task sets
        the text."""
        if over.get("text") and "pairs" not in over:
            over = over | {"pairs": ""}
        elif over.get("pairs") and not {"text", "task"} & over.keys():
            over = over | {"text": (STDLIB,)}
        task = over.get("task", {})
        if not isinstance(task, dict):
            return over
        if "text" in over and "kind" not in task:
            return over | {"task": task | {"kind": _task_named(over["text"])}}
        if "text" not in over and isinstance(task.get("kind"), str):
            kind = task["kind"]
            return over | {"text": (STDLIB if kind == NO_TASK else kind,)}
        return over

    @property
    def texts(self) -> tuple[str, ...]:
        """Sources to read: the pairs, or the texts."""
        return (self.pairs,) if self.pairs else self.text

    @model_validator(mode="before")
    @classmethod
    def _text_and_task_are_one(cls, values: object) -> Any:
        """Derive a task's kind from its name as the text, and a default text from the kind."""
        if not isinstance(values, dict):
            return values
        task, text = values.get("task"), _as_list(values.get("text", STDLIB))
        given = task if isinstance(task, dict) else dump(task) if isinstance(task, Task) else {}
        kind = given.get("kind", NO_TASK)
        if not isinstance(text, (tuple, list)) or not isinstance(kind, str):
            return values
        named = _task_named(text)
        if kind == NO_TASK and named != NO_TASK:
            return values | {"task": given | {"kind": named}}
        if kind in Task.choices() and kind != NO_TASK and tuple(text) == (STDLIB,):
            return values | {"text": (kind,)}
        return values


def _task_named(text: object) -> str:
    """Return the kind of the task that a text names, or NO_TASK."""
    name = text[0] if isinstance(text, (tuple, list)) and len(text) == 1 else text
    return name if isinstance(name, str) and name in Task.choices() else NO_TASK


class Optimizer(Choice):
    """The axis of optimizers, which compute updates from gradients."""

    axis: ClassVar[str] = "optimizer"
    can_shard: ClassVar[bool] = False
    """True if ranks can each hold a shard of its parameters: updates are elementwise, or it gathers whole tensors with
    `archwright.optim.shards`."""
    learning_rates: ClassVar[tuple[str, ...]] = ("lr",)
    """Fields that are peak learning rates. The first is tuned and is the value of "auto" in the others, which keep
    their ratio to it."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        rates = set(cls.learning_rates)
        if not cls.is_axis() and not (rates and rates <= cls.model_fields.keys()):
            raise ValueError(
                f"{cls.__name__}: learning_rates is {cls.learning_rates}; expected the names of its fields that "
                "are learning rates, one at least"
            )

    @property
    def peak_lr(self) -> float:
        """The tuned learning rate."""
        lr: float = getattr(self, self.learning_rates[0])
        return lr

    def with_peak_lr(self, lr: float) -> Self:
        """Return this optimizer with another tuned learning rate; the others keep their ratio."""
        first, *others = self.learning_rates
        given = {name: getattr(self, name) for name in others if getattr(self, name) != "auto"}
        rescaled = {name: value * lr / self.peak_lr for name, value in given.items()}
        return self.model_copy(update={first: lr, **rescaled})

    def with_lrs_resolved(self) -> Self:
        """Return this optimizer with a number for each "auto" learning rate."""
        left = [name for name in self.learning_rates if getattr(self, name) == "auto"]
        return self.model_copy(update=dict.fromkeys(left, self.peak_lr)) if left else self


Betas = Annotated[
    tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]],
    Field(strict=False),
]


class AdamW(Optimizer):
    """Adam with decoupled weight decay on matrices: w = w - lr (m / (sqrt(v) + eps) + weight_decay w), with
    bias-corrected running means m of the gradient and v of its square (Loshchilov and Hutter, 2017)."""

    kind: Literal["adamw"] = "adamw"
    can_shard: ClassVar[bool] = True
    lr: float = Field(3e-3, gt=0)
    """Peak learning rate."""
    betas: Betas = (0.9, 0.95)
    """Decay per step of the running means of the gradient and of its square."""
    eps: float = Field(1e-8, gt=0)
    """Added to the root of the mean square."""
    weight_decay: float = Field(0.1, ge=0, le=1e6)
    """Weight decay coefficient; a step removes the share lr weight_decay of a weight."""


class Muon(Optimizer):
    """Orthogonalized momentum for hidden matrices: W = (1 - lr weight_decay) W - lr 0.2 sqrt(max(d_out, d_in)) U V^T,
    with U S V^T the singular value decomposition of the momentum (Jordan et al., 2024, Muon); AdamW for the rest."""

    kind: Literal["muon"] = "muon"
    can_shard: ClassVar[bool] = True
    learning_rates: ClassVar[tuple[str, ...]] = ("lr", "adamw_lr")
    lr: float = Field(1e-2, gt=0)
    """Peak learning rate of matrices, in AdamW's units: updates have a root mean square of 0.2."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """Decay per step of the running mean M of the gradient G."""
    nesterov: bool = True
    """Nesterov momentum: (1 - momentum) G + momentum M instead of M."""
    method: Literal["polar", "jordan"] = "polar"
    """Polynomials of the Newton-Schulz iterations. polar: Polar Express (Amsel et al., 2025); jordan: Jordan's."""
    steps: int = Field(3, ge=1, le=20)
    """Newton-Schulz iterations; "jordan" needs 5."""
    weight_decay: float = Field(0.1, ge=0, le=1e6)
    """Weight decay coefficient; a step removes the share lr weight_decay of a weight."""
    adamw_lr: AutoFloat = Field("auto", examples=[3e-3])
    """Peak learning rate of embedding, head and vectors; auto: `lr`."""
    betas: Betas = (0.9, 0.95)
    """AdamW's decay per step of the running means of the gradient and of its square."""
    eps: float = Field(1e-8, gt=0)
    """AdamW's addend to the root of the mean square."""


class Schedule(Choice):
    """The axis of learning-rate schedules: factors of the peak, as functions of the step. All begin with a linear
    warm-up."""

    axis: ClassVar[str] = "schedule"
    warmup: AutoSteps | Literal[0] = Field("auto", examples=[100])
    """Steps of linear warm-up; auto: 5% of the run, at most 200."""


class Cosine(Schedule):
    """f + (1 - f) (1 + cos(pi t)) / 2, t from 0 after warm-up to 1 at the end, f = final_lr_fraction
    (Loshchilov and Hutter, 2016)."""

    kind: Literal["cosine"] = "cosine"
    final_lr_fraction: float = Field(0.1, ge=0, le=1)
    """Final learning rate as a share of the peak."""


class WSD(Schedule):
    """1, then 1 - (1 - f) t over the last share `decay_fraction` of the run, t from 0 to 1, f = final_lr_fraction
    (Hu et al., 2024)."""

    kind: Literal["wsd"] = "wsd"
    decay_fraction: float = Field(0.2, gt=0, le=1)
    """Share of the run with decay."""
    final_lr_fraction: float = Field(0.0, ge=0, le=1)
    """Final learning rate as a share of the peak."""


class Linear(Schedule):
    """1 - (1 - f) t, t from 0 after warm-up to 1 at the end, f = final_lr_fraction (Devlin et al., 2018)."""

    kind: Literal["linear"] = "linear"
    final_lr_fraction: float = Field(0.0, ge=0, le=1)
    """Final learning rate as a share of the peak."""


class Constant(Schedule):
    """1 after warm-up."""

    kind: Literal["constant"] = "constant"


class InverseSqrt(Schedule):
    """sqrt((warmup + 1) / (step + 1)) after warm-up, with steps counted from 0 (Vaswani et al., 2017, section 5.3)."""

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"


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
    """Steps between checkpoints; 0: about one per minute."""
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


ActivationCheckpointing = Literal["none", "selective", "full"]


class MachineSpec(Spec):
    """Machine settings, chosen once per run by rules (`machine/rules.py`) if "auto"."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16", "fp8"] = "auto"
    """fp32, or autocast to bf16 or fp16; fp8: bf16 with 8-bit matmuls inside, on a GPU with fp8 (extra fp8); auto: bf16
    on devices with bf16 instructions, else fp32."""
    float32_matmul_precision: Literal["auto", "highest", "medium"] = "auto"
    """Value for torch.set_float32_matmul_precision; auto: "medium" if that is true float32 and faster."""
    kernel: Literal["auto", "eager", "sdpa", "blockwise", "flex"] = "auto"
    """Attention kernel; auto: by device, precision, length and mask. On a CPU blockwise, or sdpa for short sequences in
    float32; on CUDA sdpa for plain attention, else flex (FlexAttention)."""
    scan: Literal["auto", "recurrent", "chunked", "fla"] = "auto"
    """Kernel of recurrences: recurrent (token by token), chunked (matmuls per chunk) or fla (flash-linear-attention,
    with bf16 matmuls); auto: fla on CUDA if installed, else chunked."""
    loss: Literal["auto", "whole", "chunked"] = "auto"
    """whole: all logits of a microbatch at once; chunked: a chunk at a time, to save memory; auto: chunked if float32
    logits would take more than 256 MiB."""
    activation_checkpointing: ActivationCheckpointing = "none"
    """Recomputation in the backward pass, to save memory. selective: all of a layer except matmuls with weights and
    attention outputs; scores are recomputed if the kernel stores them (Korthikanti et al., 2022). full: whole layers
    from their inputs, for up to a third more FLOPs (Chen et al., 2016). Compiled layers recompute like selective, even
    with "none"."""
    compile: Literal["auto", "none", "block"] = "auto"
    """block: torch.compile for each layer; auto: if it makes steps faster, measured in runs of over ten minutes."""
    fused: Literal["auto", "none", "liger"] = "auto"
    """Fused kernels for norms, gates and the chunked loss: liger's, on a GPU (extra liger), or none; auto: liger's if
    installed and faster, measured in runs of over ten minutes."""
    threads: AutoCount = "auto"
    """CPU threads of a machine, divided equally between its processes of a run."""
    num_steps: AutoSteps = "auto"
    """Steps of the run; auto: the number that fits the budget."""


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
