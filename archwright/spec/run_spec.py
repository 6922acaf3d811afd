"""A training run as data: a model, a text, and how one is trained on the other."""

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
    """Refuse the name of a file that a run's spec, which is UTF-8, could not hold."""
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
"""Where the metrics of a run may go, beside its metrics.jsonl."""


def _as_loggers(value: object) -> Any:
    """Read `csv,wandb` as the command line has it, and "none"; refuse what is no logger's name."""
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
"""The kind of a task that is none: a run is trained on documents."""
STDLIB = "stdlib"
"""The text that is always there."""
PAIRS_OBJECTIVE = "sequence_to_sequence"
"""The kind of the objective that pairs ask for."""
SYNTHETIC = "synthetic"
"""The pairs that are always there."""


class TokenizerSpec(Spec):
    """How text becomes tokens."""

    kind: Literal["bpe", "bytes", "file"] = "bpe"
    """Byte-level BPE trained on the text, raw bytes, or a tokenizer.json."""
    vocab_size: int = Field(4096, ge=257, le=2**24)
    """Number of tokens of a trained BPE, special tokens included."""
    path: Recordable = ""
    """The tokenizer.json of kind "file"."""
    end_of_text: str = Field("<|endoftext|>", min_length=1)
    """The token every document starts from."""
    special_tokens: Texts = ()
    """Further tokens that no text produces."""


class DataSpec(Spec):
    """Which text, how it is split, and how its tokens fill batches."""

    text: Annotated[Texts, Field(min_length=1)] = (STDLIB,)
    """Files (plain text, .jsonl, .parquet), folders, globs, `-` for standard input, `stdlib`: Python's own source,
    `datasets:NAME[:CONFIG][@SPLIT]`, or a synthetic task by its name, such as `mqar`."""
    pairs: Recordable = Field("", examples=[SYNTHETIC])
    """In place of `text`, pairs of a source and a target for an encoder-decoder: a .tsv or .jsonl file (`source`,
    `target`), or `synthetic`: sentences of two made-up languages."""
    held_out: Texts = ()
    """Texts, or files of pairs, to evaluate on; empty: one document in ten of `text`, by hash."""
    field: str = "text"
    """The field of a JSONL record, or the column of a table, that holds its text."""
    separator: str = ""
    """Separator of documents inside a plain text file; empty: a file is a document."""
    errors: Literal["strict", "replace"] = "strict"
    """Treatment of bytes that are not UTF-8."""
    tokenizer: TokenizerSpec = TokenizerSpec()
    packing: Literal["concat", "document_mask"] = "concat"
    """Pack documents end to end, or also hide them from one another with positions of their own."""
    task: Task = Documents()
    """The synthetic task that `text` names, with its options."""

    @classmethod
    def implied(cls, over: dict[str, Any]) -> dict[str, Any]:
        """Let another text end a task and pairs, or begin a task, and another task be the text."""
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
        """What is read: pairs, or texts."""
        return (self.pairs,) if self.pairs else self.text

    @model_validator(mode="before")
    @classmethod
    def _text_and_task_are_one(cls, values: object) -> Any:
        """Let the name of a task as the text stand for its kind, and its kind for a text that is left as it is."""
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
    """Return the kind of the task that a text is, or NO_TASK."""
    name = text[0] if isinstance(text, (tuple, list)) and len(text) == 1 else text
    return name if isinstance(name, str) and name in Task.choices() else NO_TASK


class Optimizer(Choice):
    """The axis of optimizers: how a gradient becomes a step."""

    axis: ClassVar[str] = "optimizer"
    can_shard: ClassVar[bool] = False
    """Whether processes may each hold parts of what it moves: it moves every number by itself, or asks for wholes by
    `archwright.optim.shards`."""
    learning_rates: ClassVar[tuple[str, ...]] = ("lr",)
    """The fields that are peak learning rates: first the one that is tuned, to which the others keep their ratio,
    and which an "auto" among them stands for."""

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
        """The learning rate that is tuned."""
        lr: float = getattr(self, self.learning_rates[0])
        return lr

    def with_peak_lr(self, lr: float) -> Self:
        """Return this optimizer with another learning rate, to which further ones keep their ratio."""
        first, *others = self.learning_rates
        given = {name: getattr(self, name) for name in others if getattr(self, name) != "auto"}
        rescaled = {name: value * lr / self.peak_lr for name, value in given.items()}
        return self.model_copy(update={first: lr, **rescaled})

    def with_lrs_resolved(self) -> Self:
        """Return this optimizer with a number in the place of each learning rate that is "auto"."""
        left = [name for name in self.learning_rates if getattr(self, name) == "auto"]
        return self.model_copy(update=dict.fromkeys(left, self.peak_lr)) if left else self


Betas = Annotated[
    tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]],
    Field(strict=False),
]


class AdamW(Optimizer):
    """Adam with decoupled weight decay on matrices: w = w - lr (m / (sqrt(v) + eps) + weight_decay w), with
    running means m of the gradient and v of its square, corrected for their start at 0
    (Loshchilov and Hutter, 2017)."""

    kind: Literal["adamw"] = "adamw"
    can_shard: ClassVar[bool] = True
    lr: float = Field(3e-3, gt=0)
    """Peak learning rate."""
    betas: Betas = (0.9, 0.95)
    """Decay of the running means of the gradient and of its square, per step."""
    eps: float = Field(1e-8, gt=0)
    """Added to the root of the mean square."""
    weight_decay: float = Field(0.1, ge=0, le=1e6)
    """Times the learning rate: the share of a weight that a step takes off."""


class Muon(Optimizer):
    """Momentum made orthogonal, for hidden matrices: W = (1 - lr weight_decay) W - lr 0.2 sqrt(max(d_out, d_in))
    U V^T, with U S V^T the singular value decomposition of the momentum (Jordan et al., 2024, Muon); AdamW for
    the rest."""

    kind: Literal["muon"] = "muon"
    can_shard: ClassVar[bool] = True
    learning_rates: ClassVar[tuple[str, ...]] = ("lr", "adamw_lr")
    lr: float = Field(1e-2, gt=0)
    """Peak learning rate of matrices, in AdamW's units: updates have a root mean square of 0.2."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """Decay of the running mean M of the gradient G, per step."""
    nesterov: bool = True
    """Look ahead: (1 - momentum) G + momentum M in the place of M."""
    method: Literal["polar", "jordan"] = "polar"
    """Polynomials of the Newton-Schulz iterations: Polar Express (Amsel et al., 2025), or Jordan's."""
    steps: int = Field(3, ge=1, le=20)
    """Newton-Schulz iterations; "jordan" wants 5."""
    weight_decay: float = Field(0.1, ge=0, le=1e6)
    """Times the learning rate: the share of a weight that a step takes off."""
    adamw_lr: AutoFloat = Field("auto", examples=[3e-3])
    """Peak learning rate of embedding, head and vectors; auto: `lr`."""
    betas: Betas = (0.9, 0.95)
    """Of AdamW: decay of the running means of the gradient and of its square, per step."""
    eps: float = Field(1e-8, gt=0)
    """Of AdamW: added to the root of the mean square."""


class Schedule(Choice):
    """The axis of learning-rate schedules: factors of the peak as pure functions of the step. All begin
    with a linear warm-up."""

    axis: ClassVar[str] = "schedule"
    warmup: AutoSteps | Literal[0] = Field("auto", examples=[100])
    """Steps of linear warm-up; auto: a twentieth of the run, at most 200."""


class Cosine(Schedule):
    """f + (1 - f) (1 + cos(pi t)) / 2, t from 0 after warm-up to 1 at the end, f = final_lr_fraction
    (Loshchilov and Hutter, 2016)."""

    kind: Literal["cosine"] = "cosine"
    final_lr_fraction: float = Field(0.1, ge=0, le=1)
    """Share of the peak that is left at the end."""


class WSD(Schedule):
    """1, then 1 - (1 - f) t over the last share `decay_fraction` of the run, t from 0 to 1, f = final_lr_fraction
    (Hu et al., 2024)."""

    kind: Literal["wsd"] = "wsd"
    decay_fraction: float = Field(0.2, gt=0, le=1)
    """Share of the run that decays."""
    final_lr_fraction: float = Field(0.0, ge=0, le=1)
    """Share of the peak that is left at the end."""


class Linear(Schedule):
    """1 - (1 - f) t, t from 0 after warm-up to 1 at the end, f = final_lr_fraction (Devlin et al., 2018)."""

    kind: Literal["linear"] = "linear"
    final_lr_fraction: float = Field(0.0, ge=0, le=1)
    """Share of the peak that is left at the end."""


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
    """Steps between evaluations; 0: ten times in a run and at its end."""
    max_tokens: Steps = 20_000
    """Tokens of an evaluation during training."""
    final_max_tokens: Steps = 2_000_000
    """Tokens of the evaluation at the end, which reads all there are up to this many."""
    max_bytes: OptionalSize = "none"
    """Bytes of an evaluation during training, in place of tokens: pieces of text, the same for every tokenizer."""
    final_max_bytes: OptionalSize = "none"
    """Bytes of the evaluation at the end in place of tokens."""
    stride: AutoTokens = "auto"
    """Tokens between the starts of overlapping windows; auto: half the context."""
    lengths: Annotated[tuple[Tokens, ...], Field(strict=False)] = ()
    """Other lengths of text, in tokens, that the final evaluation is repeated at, without overlap."""

    @property
    def final_bytes(self) -> int | None:
        """`final_max_bytes`, where it is given."""
        return None if self.final_max_bytes == "none" else self.final_max_bytes


class EarlyStopSpec(Spec):
    """The end of a run before its budget is spent, where its held-out loss falls no more (Prechelt, 1998)."""

    patience: int = Field(0, ge=0, le=10**12)
    """Evaluations in a row that find no new lowest held-out loss, after which a run ends; 0: never."""
    min_delta: float = Field(0.0, ge=0, examples=[0.001])
    """How much lower than the lowest a held-out loss must be to count as a new one, in nats per token."""
    restore_best: bool = True
    """Whether a run that ends so has the weights of its lowest held-out loss; else those of its last step."""


class CheckpointSpec(Spec):
    """Checkpoints to resume from."""

    every: int = Field(0, ge=0, le=10**12)
    """Steps between checkpoints; 0: about every minute."""
    keep: Steps = 2
    """How many of the newest stay."""


class ProbesSpec(Spec):
    """Probes of the model's inside while it trains; they change nothing of the training."""

    every: int = Field(0, ge=0, le=10**12)
    """Steps between looks at gradients, updates, attention and activations; 0: never."""


class InitFrom(Spec):
    """Existing weights to start from."""

    from_: str = Field("", alias="from")
    """A run folder or a folder with model.safetensors; empty: fresh weights."""


ActivationCheckpointing = Literal["none", "selective", "full"]


class MachineSpec(Spec):
    """Decisions that are made once for a run, by rule (`machine/rules.py`); given values are kept."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16", "fp8"] = "auto"
    """fp32, or autocast to bf16 or fp16; fp8: bf16 with products inside in 8 bits, on a GPU that has them (extra
    fp8); auto: bf16 on devices with instructions for it, else fp32."""
    float32_matmul_precision: Literal["auto", "highest", "medium"] = "auto"
    """torch's name for how float32 products are computed; auto: "medium" where that is true float32 and faster."""
    kernel: Literal["auto", "eager", "sdpa", "blockwise", "flex"] = "auto"
    """Attention kernel; auto: by device, precision, length and mask. On a CPU blockwise, or sdpa for short sequences in
    float32; on CUDA sdpa for plain attention, else flex (FlexAttention)."""
    scan: Literal["auto", "recurrent", "chunked", "fla"] = "auto"
    """Kernel of recurrences: token by token, in chunks of matrix products, or flash-linear-attention's (bf16 products);
    auto: fla if it is installed on a machine with CUDA, else chunked."""
    loss: Literal["auto", "whole", "chunked"] = "auto"
    """All logits of a part of a batch at once, or a chunk at a time, which saves memory; auto: chunks where
    float32 logits would take more than 256 MiB."""
    activation_checkpointing: ActivationCheckpointing = "none"
    """What is computed again in the backward pass, which saves memory. selective: all of a layer but products with
    weights and attention, whose results are kept; scores are computed again where a kernel keeps them (Korthikanti et
    al., 2022). full: all of a layer, of which only what enters it is kept, for up to a third more FLOPs (Chen et al.,
    2016). Layers that are compiled keep by themselves what selective does."""
    compile: Literal["auto", "none", "block"] = "auto"
    """block: torch.compile for each layer; auto: where steps are then faster, tried in runs of over ten minutes."""
    fused: Literal["auto", "none", "liger"] = "auto"
    """Whose fused kernels compute norms, gates and the loss in chunks: liger's, on a GPU (extra liger), or none;
    auto: liger's where they are here and steps are then faster, tried in runs of over ten minutes."""
    threads: AutoCount = "auto"
    """Of one machine; processes on it that train a run together have equal shares of them."""
    num_steps: AutoSteps = "auto"
    """Steps of the run; auto: what fits the budget."""


class PartsFile(Spec):
    """A file of choices from outside the package that this run was made with."""

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
    """Parts a batch is cut into to save memory; gradients are summed over them."""
    budget: Budget = Budget("3m")
    """How long to train: wall time, steps, tokens or FLOPs."""
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Cosine()
    max_grad_norm: OptionalFloat = 1.0
    """Largest norm of the gradient; larger ones are scaled down to it."""
    z_loss: float = Field(0.0, ge=0, examples=[1e-4])
    """Weight of the mean square of log Z, which keeps logits from drifting (PaLM, section 5)."""
    label_smoothing: float = Field(0.0, ge=0, lt=1, examples=[0.1])
    """Share of a target's weight in the training loss that all tokens have alike; losses that are reported are
    without it (Szegedy et al., 2016, section 7; Vaswani et al., 2017, section 5.4)."""
    stream_decay: float = Field(1.0, gt=0, le=1, examples=[0.5])
    """Weight g of a further predicting stream's loss over that of the stream before it: of n streams, the i-th has
    g^(i - 1) / (1 + g + ... + g^(n - 1)) in the training loss (Qi et al., 2020, ProphetNet: attenuation coefficient,
    1 there). Losses that are reported are those of the first stream alone."""
    evaluate: EvaluateSpec = EvaluateSpec()
    early_stop: EarlyStopSpec = EarlyStopSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    probes: ProbesSpec = ProbesSpec()
    init: InitFrom = InitFrom()
    seed: int = Field(0, ge=0, lt=2**63)
    """Of initial values, order of the data and dropout."""
    loggers: Loggers = ()
    """Where metrics go beside metrics.jsonl: csv, tensorboard, wandb (the last two with extras of these names)."""
    machine: MachineSpec = MachineSpec()
    scale: ScaleSpec = ScaleSpec()
    parts: Annotated[tuple[PartsFile, ...], Field(strict=False)] = ()

    @classmethod
    def implied(cls, over: dict[str, Any]) -> dict[str, Any]:
        """Return values with those that follow: pairs imply their objective, and the reverse."""
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
        """How text becomes tokens: as it is asked for, and with the special tokens of the objective."""
        asked = self.data.tokenizer
        tokens = dict.fromkeys((*asked.special_tokens, *self.objective.special_tokens))
        return asked.model_copy(update={"special_tokens": tuple(tokens)})

    @property
    def second_task(self) -> str:
        """What is learned beside what losses are reported of, in words; empty where that is all."""
        return "further tokens" if self.model.predicting_streams > 1 else self.objective.second_task

    @property
    def second_cases(self) -> str:
        """What that is learned of."""
        ahead = self.model.predicting_streams > 1
        return "further token" if ahead else self.objective.second_cases

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one step trains on."""
        return self.batch_size * self.model.context_length

    @property
    def flops_evidence(self) -> str:
        """Evidence of FLOPs that are counted from whole windows: rows may hold shorter texts."""
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
        """Return a stable hash of what is trained on what, and how, but not on which machine."""
        return fingerprint(self)
