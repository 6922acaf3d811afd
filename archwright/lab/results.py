"""Results of a study as plain data: runs, replicates and effects, for the page and the tables."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from archwright.format import signed
from archwright.notebook import Report, html_table
from archwright.spec.study_spec import StudySpec

if TYPE_CHECKING:
    from archwright.lab.procedure.spikes import Spikes

MOST_SHARE = 10.0
"""Largest difference over a loss that is reported as a share of it."""

Outcome = Literal["better", "worse", "equivalent", "inconclusive", "identical"]

Unit = Literal["nats per token", "nats per predicted token", "nats per answer", "bits per byte"]
"""Unit of losses: nats for documents and tasks, bits per byte if tokenizers differ."""


@dataclass(frozen=True)
class Point:
    """Held-out evaluation during training."""

    step: int
    tokens: int
    flops: float
    seconds: float
    """Processor time without evaluations."""
    loss: float
    train_loss: float = float("nan")
    """Mean over the training steps since the previous evaluation."""


NEAR = 1e-9
"""Relative rounding error of a bound."""


@dataclass(frozen=True)
class Halves:
    """Losses of a run on both halves of the held-out text, at most the initial loss."""

    tuning: float
    """Loss on every other window, for tuning."""
    judged: float
    """Loss on the remaining windows, for verdicts."""
    sizes: Sequence[float]
    """Targets (bytes, for bits per byte) of the judged half, by document or by section of a text with few."""
    sums: Sequence[float]
    """Sums of -ln p (-log2 p, for bits per byte) over these targets."""


@dataclass(frozen=True)
class RunResult:
    """Finished run, with losses on held-out text in the study's unit."""

    key: str
    """Name of the run folder: a hash of resolved spec, data and code."""
    variant: str
    seed: int
    lr: float
    """Peak learning rate."""
    loss: float
    """Final loss, at most `initial_loss`, which a diverged run has."""
    bits_per_byte: float
    initial_loss: float
    diverged: bool = False
    failed: str = ""
    """Reason of a failure; the numbers are then NaN."""
    tokens: int = 0
    """Trained tokens; 0 if the run failed."""
    seconds: float = float("nan")
    """Wall time of training."""
    cpu_seconds: float = float("nan")
    """Processor time."""
    tokens_per_second: float = float("nan")
    """Tokens per second of processor time."""
    memory_bytes: float = float("nan")
    """Peak memory of the process."""
    curve: Sequence[Point] = ()
    """Evaluations, all on one sample of the held-out text."""
    halves: Halves | None = None
    """None if the run failed."""
    lengths: Mapping[int, float] = field(default_factory=dict)
    """Losses on longer sequences, by length in tokens."""
    command: str = ""
    """Command that repeats the run."""
    accuracy: float = float("nan")
    """Final share of right answers, in a task."""


def compared_of(runs: Sequence[RunResult], study: StudySpec) -> list[RunResult]:
    """Return the compared runs, or all if there are none; tuning runs are evaluated less often."""
    tuning = study.tuning_seed_numbers
    return [run for run in runs if run.seed not in tuning] or [*runs]


@dataclass(frozen=True)
class Variant:
    """Architecture of a study, as built. The first variant is the baseline."""

    name: str
    words: Sequence[str]
    """Words of the command line."""
    changes: Sequence[str]
    """Differences from the baseline, `path: old -> new`, including the matched width."""
    parameters: int
    non_embedding: int
    flops_per_token: float
    dim: int
    num_layers: int
    hidden_dims: Sequence[int]
    """Hidden widths of all kinds of layers, the default first."""
    cache_bytes: int = 0
    """Size of the decoding cache at full context (16 bits, recurrences 32); 0 without a cache."""


@dataclass(frozen=True)
class Replicate:
    """Result of one seed of a variant."""

    variant: str
    seed: int
    loss: float
    """Loss of the seed's only run, or at the vertex of a parabola in log(lr) through its sweep."""
    lr: float
    best: RunResult
    """Run with the lowest loss."""
    at_boundary: bool = False
    """True if the best learning rate is at an end of the grid."""


@dataclass(frozen=True)
class Interval:
    """Two-sided confidence interval of a mean difference."""

    low: float
    high: float
    level: float
    method: str = "t"


@dataclass(frozen=True)
class Horizon:
    """Difference at one horizon."""

    tokens: int
    """Training tokens of a run."""
    mean: float
    """Mean of variant minus baseline in held-out loss, with its 95 % interval."""
    low: float
    high: float
    pairs: int


@dataclass(frozen=True)
class Multiplier:
    """The baseline's cost over the variant's for equal loss, the higher of their final losses.

    `tokens` stays within the trained horizons: `most` and 1 / `most` are bounds.
    """

    tokens: float
    """Ratio of tokens, with its 95 % interval."""
    low: float
    high: float
    most: float
    """Full horizon over the shortest one."""
    flops: float
    """Baseline's FLOPs per token over the variant's."""
    horizons: Sequence[Horizon] = ()
    """Differences, the shortest horizon first."""

    @property
    def compute(self) -> float:
        """Ratio of training FLOPs."""
        return self.tokens * self.flops

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of `compute`."""
        return self.low * self.flops, self.high * self.flops

    @property
    def is_bound(self) -> bool:
        """True if `tokens` is not within the trained horizons."""
        return not (1 + NEAR) / self.most < self.tokens < self.most * (1 - NEAR)


@dataclass(frozen=True)
class Effect:
    """Variant minus baseline in held-out loss, over paired seeds: below 0 is better."""

    variant: str
    outcome: Outcome
    mean: float
    """Naive mean of `differences`."""
    estimate: float
    """Mean, shrunken if the variant is better or worse: the number to quote."""
    interval: Interval
    """95 % interval of the mean, valid at all looks together."""
    equivalence: Interval
    """90 % interval of the mean, to be compared with the margin."""
    margin: float
    """Margin in the unit of the loss; NaN for a margin of compute without a slope."""
    differences: Sequence[float]
    """Differences by seed."""
    seeds: Sequence[int]
    loss_per_bit_per_byte: float
    """Loss of one bit per byte on this text; NaN if undefined."""
    unit: Unit = "nats per token"
    text_error: float = 0.0
    """Standard error of the mean from the choice of held-out documents; 0 if unknown."""
    placing_error: float = 0.0
    """Standard error of the mean from tuning both learning rates; 0 without tuning."""
    slope: float = float("nan")
    """Fall of the baseline's loss per e-fold of compute; NaN without shorter runs."""
    baseline_loss: float = float("nan")
    """Mean of the baseline over the same seeds."""
    caveats: Sequence[str] = ()
    """Reasons for an inconclusive outcome, such as a learning rate at the end of its grid."""
    sentence: str = ""
    multiplier: Multiplier | None = None
    """Compute equivalent of the difference; None without shorter horizons."""
    diverged: str = ""
    """Arm with divergence in every run at a given learning rate, if its opposite learnt in every run; the numbers are
    then meaningless."""

    @property
    def has_numbers(self) -> bool:
        """True if its numbers may be shown; a number is easily mistaken for a result."""
        return self.outcome != "inconclusive" and not self.diverged

    @property
    def within_margin(self) -> bool:
        """True for a small difference: the 95 % interval excludes 0 and lies within the margin."""
        low, high = self.interval.low, self.interval.high
        return not low <= 0 <= high and max(-low, high) < self.margin

    @property
    def bits_per_byte(self) -> float:
        """Estimate in bits per byte."""
        return self.estimate / self.loss_per_bit_per_byte

    @property
    def share(self) -> float:
        """Estimate as a share of the baseline's loss; NaN for a loss near 0."""
        return self.as_share(self.estimate)

    @property
    def margin_share(self) -> float:
        """Margin as a share of the baseline's loss."""
        return self.as_share(self.margin)

    @property
    def margin_compute(self) -> float:
        """Margin as a share of the baseline's compute; NaN without a slope."""
        return math.expm1(self.margin / self.slope) if self.slope > 0 else float("nan")

    def as_share(self, difference: float) -> float:
        """Return a difference as a share of the baseline's loss; NaN for a loss near 0."""
        share = difference / abs(self.baseline_loss)
        return share if abs(share) < MOST_SHARE else float("nan")


@dataclass(frozen=True)
class Interaction:
    """Interaction of two changes in held-out loss: (both - first) - (second - baseline)."""

    first: str
    second: str
    both: str
    """Variant with the changes of both."""
    mean: float
    """Mean of `differences`: below 0, the changes help each other."""
    interval: Interval
    """Student's 95 % interval."""
    seeds: Sequence[int]
    differences: Sequence[float]
    """Interactions by seed."""
    sentence: str

    @property
    def is_known(self) -> bool:
        """True if the interval excludes 0."""
        return not (math.isnan(self.mean) or self.interval.low <= 0 <= self.interval.high)


@dataclass(frozen=True)
class BestRate:
    """Best learning rate of a variant at one width."""

    width: int
    lr: float
    """Geometric mean of the sweeps' vertices over seeds, with its 95 % interval."""
    low: float
    high: float
    loss: float
    """Mean loss at the vertices."""
    seeds: int
    at_boundary: bool = False
    """True if most seeds have their lowest loss at an end of the grid."""
    learnt: bool = True
    """True if the loss is clearly below the entropy of token frequencies."""


@dataclass(frozen=True)
class Drift:
    """Change of a variant's best learning rate from the narrowest to the widest model."""

    name: str
    """Variant without a width."""
    rates: Sequence[BestRate]
    """Best rates, the narrowest model first."""
    factor: float
    """Widest model's best rate over the narrowest model's, with its 95 % interval."""
    low: float
    high: float


@dataclass(frozen=True)
class ControlledVariable:
    """Setting shared by all variants; `by_variant` if they differ in it."""

    what: str
    value: str = ""
    by_variant: Mapping[str, str] = field(default_factory=dict)
    equal: bool = True


@dataclass(frozen=True)
class TaskFacts:
    """Name of a task and its reference figures."""

    name: str
    chance: float
    """Accuracy of guessing."""
    floor: float
    """Lowest possible loss, in nats per answer."""


@dataclass(frozen=True)
class StudyResults:
    """Results of a study."""

    study: StudySpec
    folder: str
    verdict: str
    """Outcomes in sentences."""
    scope: str
    """Scale, tokens and device of the verdict, and its limits."""
    variants: Sequence[Variant]
    runs: Sequence[RunResult]
    """Runs of the full horizon."""
    replicates: Sequence[Replicate]
    effects: Sequence[Effect]
    grids: Mapping[str, Sequence[float]]
    """Window of learning rates of each variant."""
    held: Sequence[ControlledVariable]
    tokens_per_run: int
    steps: int
    evaluation_tokens: int
    device: str
    """Device in words, such as "one thread of Intel Xeon, bf16, blockwise attention"."""
    predicted_seconds: float
    """Estimated wall time."""
    seconds: float
    """Wall time of all runs."""
    command: str
    """Command that repeats the study."""
    unit: Unit = "nats per token"
    interactions: Sequence[Interaction] = ()
    shorter_runs: Sequence[RunResult] = ()
    """Runs of a share of the steps."""
    drifts: Sequence[Drift] = ()
    """Drifts in a study of widths, which has no effects."""
    task: TaskFacts | None = None
    """None if runs are trained on documents."""
    complete: bool = True
    spikes: Mapping[str, Sequence["Spikes"]] = field(default_factory=dict)
    """Spikes by variant, the first learning rate first."""
    notes: Sequence[str] = ()
    """Notes for the reader: seeds left out, runs failed or diverged, noise of the machine."""

    def report(self, *, inline: bool = False) -> Report:
        """Return the study's page, as `OpenRun.report` returns a run's."""
        return Report(Path(self.folder) / "report.html", inline=inline)

    def __repr__(self) -> str:
        return f"StudyResults({self.folder}: {self.verdict})"

    def _repr_html_(self) -> str:
        """Return the verdict and a row for each variant, for notebooks."""
        head = ("variant", "outcome", f"difference in {self.unit}", "95 % interval", "seeds")
        return html_table(self.verdict, head, (_effect_cells(effect) for effect in self.effects))

    def spike_rates(self, name: str) -> list[float]:
        """Return the learning rates of a variant's compared runs, in the order of training."""
        own = [run for run in self.runs if run.variant == name]
        return sorted({run.lr for run in compared_of(own, self.study)}, reverse=True)

    def spikes_at(self, run: RunResult) -> "Spikes | None":
        """Return the spikes of its variant at a compared run's learning rate, if any."""
        if run.seed in self.study.tuning_seed_numbers:
            return None
        spikes = self.spikes.get(run.variant, ())
        return dict(zip(self.spike_rates(run.variant), spikes, strict=False)).get(run.lr)

    def counts(self, run: RunResult) -> bool:
        """True unless a lower learning rate replaced the run's rate because of spikes."""
        spikes = self.spikes_at(run)
        return not (spikes and spikes.halved)

    @property
    def accuracies(self) -> dict[str, list[float]]:
        """Accuracies of each variant's best runs by seed; empty without a task."""
        if self.task is None:
            return {}
        accuracies: dict[str, list[float]] = {variant.name: [] for variant in self.variants}
        for replicate in self.replicates:
            accuracies[replicate.variant].append(replicate.best.accuracy)
        return {name: values for name, values in accuracies.items() if values}


def _effect_cells(effect: Effect) -> tuple[str, ...]:
    low, high = signed(effect.interval.low), signed(effect.interval.high)
    numbers = (signed(effect.estimate), f"{low} to {high}") if effect.has_numbers else ("–", "–")
    return effect.variant, effect.outcome, *numbers, str(len(effect.seeds))
