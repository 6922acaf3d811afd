"""A study's results as plain data: runs, replicates, effects. The page and the tables read nothing else."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from archwright.format import signed
from archwright.notebook import Report, html_table
from archwright.spec.study_spec import StudySpec

if TYPE_CHECKING:
    from archwright.lab.procedure.standing import Spikes

MOST_SHARE = 10.0
"""Times a loss beyond which a difference is not said as a share of it."""

Outcome = Literal["better", "worse", "equivalent", "inconclusive", "identical"]

Unit = Literal["nats per token", "nats per predicted token", "nats per answer", "bits per byte"]
"""Of a study's losses: of documents, of a task, and of variants whose tokens are not the same."""


@dataclass(frozen=True)
class Point:
    """A held-out evaluation on the way. `seconds` are of the processor, evaluations left out."""

    step: int
    tokens: int
    flops: float
    seconds: float
    loss: float
    train_loss: float = float("nan")
    """Mean of the training steps since the evaluation before."""


NEAR = 1e-9
"""Share by which rounding may leave a bound."""


@dataclass(frozen=True)
class Halves:
    """Losses of a run on the two halves of the held-out text, in the study's unit, at most the initial one."""

    tuning: float
    """On every other window: by these, learning rates are tuned."""
    judged: float
    """On those between: by these, variants are judged."""
    sizes: Sequence[float]
    """Targets of the half that judges, by document, or by stretch of the text where it has few; in bits per byte, its
    bytes."""
    sums: Sequence[float]
    """Their sums of -ln p; in bits per byte, of -log2 p."""


@dataclass(frozen=True)
class RunResult:
    """One finished training. Losses are of held-out text, in the study's unit."""

    key: str
    """Names the run folder: the hash of resolved spec, data and code."""
    variant: str
    seed: int
    lr: float
    """Peak learning rate."""
    loss: float
    """At the end, at most `initial_loss`, which is what a diverged run counts as."""
    bits_per_byte: float
    initial_loss: float
    diverged: bool = False
    failed: str = ""
    """Why it came to no end; then its numbers are NaN."""
    tokens: int = 0
    """Trained on; 0 where it failed."""
    seconds: float = float("nan")
    """Wall time of training."""
    cpu_seconds: float = float("nan")
    """Time of the processor."""
    tokens_per_second: float = float("nan")
    """Of the processor: on one thread where the run had one."""
    memory_bytes: float = float("nan")
    """Most that its process held."""
    curve: Sequence[Point] = ()
    """All on one sample of the held-out text."""
    halves: Halves | None = None
    """None if the run failed."""
    lengths: Mapping[int, float] = field(default_factory=dict)
    """Loss on texts of other lengths, by tokens."""
    command: str = ""
    """The command that repeats it."""
    accuracy: float = float("nan")
    """Share of right answers at the end, of a run on a task."""


def compared_of(runs: Sequence[RunResult], study: StudySpec) -> list[RunResult]:
    """Return those of runs that are compared, as others are evaluated less often; all where there are none."""
    tuning = study.tuning_seed_numbers
    return [run for run in runs if run.seed not in tuning] or [*runs]


@dataclass(frozen=True)
class Variant:
    """One architecture of a study as it was built. The first variant of a study is its baseline."""

    name: str
    words: Sequence[str]
    """The variant as it was asked for."""
    changes: Sequence[str]
    """Differences from the baseline, `path: old -> new`, the matched width included."""
    parameters: int
    non_embedding: int
    flops_per_token: float
    dim: int
    num_layers: int
    hidden_dims: Sequence[int]
    """Of the default layer and others."""
    cache_bytes: int = 0
    """Bytes that decoding keeps after the context, in 16 bits, recurrences in 32; 0: it keeps nothing."""


@dataclass(frozen=True)
class Replicate:
    """One seed of one variant, its learning rate tuned where the study tunes it."""

    variant: str
    seed: int
    loss: float
    """The lowest point of a parabola in log(lr) through the best learning rate and its neighbours,
    or the loss at the fixed one."""
    lr: float
    """The learning rate of that point."""
    best: RunResult
    """The run with the lowest loss."""
    at_boundary: bool = False
    """The best learning rate is at the edge of the grid."""


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval of a mean difference."""

    low: float
    high: float
    level: float
    method: str = "t"


@dataclass(frozen=True)
class Horizon:
    """The difference at one horizon."""

    tokens: int
    """That each run was trained on."""
    mean: float
    """Variant minus baseline, held-out loss, meaned over pairs."""
    low: float
    high: float
    """The 95 % interval of the mean."""
    pairs: int


@dataclass(frozen=True)
class Multiplier:
    """The baseline's cost over the variant's, for the higher of their two final losses: above 1, the variant saves.

    `tokens` never exceeds the trained horizons: at `most` or 1 / `most` it is a bound.
    """

    tokens: float
    low: float
    high: float
    """The 95 % interval of `tokens`."""
    most: float
    """The whole horizon over the shortest one."""
    flops: float
    """FLOPs per token of the baseline over those of the variant."""
    horizons: Sequence[Horizon] = ()
    """The shortest first."""

    @property
    def compute(self) -> float:
        """In training FLOPs."""
        return self.tokens * self.flops

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `compute`."""
        return self.low * self.flops, self.high * self.flops

    @property
    def is_bound(self) -> bool:
        """Whether `tokens` lies beyond the horizons that were measured."""
        return not (1 + NEAR) / self.most < self.tokens < self.most * (1 - NEAR)


@dataclass(frozen=True)
class Effect:
    """Variant minus baseline over paired seeds, in held-out loss: below 0 is better."""

    variant: str
    outcome: Outcome
    mean: float
    """The naive mean of `differences`."""
    estimate: float
    """The mean, shrunken if the variant was found better or worse: the number to quote."""
    interval: Interval
    """Of the mean, 95 %, valid at all looks together."""
    equivalence: Interval
    """Of the mean, 90 %: within the margins, the variants are equivalent."""
    margin: float
    """In the unit of the loss; NaN while a margin of compute has no slope."""
    differences: Sequence[float]
    """One for each seed."""
    seeds: Sequence[int]
    loss_per_bit_per_byte: float
    """Divides a loss into bits per byte on this text; NaN if undefined."""
    unit: Unit = "nats per token"
    text_error: float = 0.0
    """Standard error of the mean from the choice of held-out documents; 0 if unknown."""
    placing_error: float = 0.0
    """Standard error of the mean from the tuning of both learning rates; 0 if these were given."""
    slope: float = float("nan")
    """Fall of the baseline's loss per e-fold of compute; NaN without shorter runs."""
    baseline_loss: float = float("nan")
    """Mean of the baseline over the same seeds."""
    caveats: Sequence[str] = ()
    """Reasons why the outcome is inconclusive at best, such as a learning rate at the end of its grid."""
    sentence: str = ""
    """The outcome in a sentence."""
    multiplier: Multiplier | None = None
    """How much compute the difference is worth, where shorter horizons were trained."""
    diverged: str = ""
    """Which of the two diverged in every run at a learning rate that was given, while the other learnt in all of its
    own: then that is the outcome, and the difference no number to be read."""

    @property
    def has_numbers(self) -> bool:
        """Whether its numbers are to be read: those of what is inconclusive are remembered as an effect."""
        return self.outcome != "inconclusive" and not self.diverged

    @property
    def within_margin(self) -> bool:
        """True if the 95 % interval leaves out 0 and lies within the margin: a real, but small difference."""
        low, high = self.interval.low, self.interval.high
        return not low <= 0 <= high and max(-low, high) < self.margin

    @property
    def bits_per_byte(self) -> float:
        """The estimate in bits per byte."""
        return self.estimate / self.loss_per_bit_per_byte

    @property
    def share(self) -> float:
        """The estimate as a share of the baseline's loss; NaN if that is near 0."""
        return self.as_share(self.estimate)

    @property
    def margin_share(self) -> float:
        """The margin as a share of the baseline's loss."""
        return self.as_share(self.margin)

    @property
    def margin_compute(self) -> float:
        """The margin as a share of the baseline's compute, by its slope; NaN without shorter runs."""
        return math.expm1(self.margin / self.slope) if self.slope > 0 else float("nan")

    def as_share(self, difference: float) -> float:
        """Return a difference as a share of the baseline's loss; NaN if that is near 0."""
        share = difference / abs(self.baseline_loss)
        return share if abs(share) < MOST_SHARE else float("nan")


@dataclass(frozen=True)
class Interaction:
    """How much two choices together differ from what each brings alone, in held-out loss."""

    first: str
    second: str
    both: str
    """The variant that has the changes of both."""
    mean: float
    """(both - first) - (second - baseline): below 0 they help each other."""
    interval: Interval
    """Of 95 %, Student's."""
    seeds: Sequence[int]
    differences: Sequence[float]
    """One for each seed."""
    sentence: str

    @property
    def is_known(self) -> bool:
        """Whether its interval leaves out 0."""
        return not (math.isnan(self.mean) or self.interval.low <= 0 <= self.interval.high)


@dataclass(frozen=True)
class BestRate:
    """The best learning rate of a variant at one width."""

    width: int
    lr: float
    """The geometric mean over seeds of the vertices of their sweeps."""
    low: float
    high: float
    """The 95 % interval."""
    loss: float
    """At the vertices, the mean over seeds."""
    seeds: int
    at_boundary: bool = False
    """Most seeds have their lowest loss at the edge of the grid."""
    learnt: bool = True
    """The loss is below that of knowing how often each token occurs, and little more."""


@dataclass(frozen=True)
class Drift:
    """How far a variant's best learning rate moves from the narrowest to the widest model."""

    name: str
    """The variant, without a width."""
    rates: Sequence[BestRate]
    """The narrowest first."""
    factor: float
    """Best rate of the widest over that of the narrowest."""
    low: float
    high: float
    """The 95 % interval of the factor."""


@dataclass(frozen=True)
class ControlledVariable:
    """A setting that all variants share; `by_variant` if they differ in it."""

    what: str
    value: str = ""
    by_variant: Mapping[str, str] = field(default_factory=dict)
    equal: bool = True


@dataclass(frozen=True)
class TaskFacts:
    """A task's name, and its figures before any model."""

    name: str
    chance: float
    """Share of answers that are right by guessing."""
    floor: float
    """The least loss, in nats per answer."""


@dataclass(frozen=True)
class StudyResults:
    """All that a study found."""

    study: StudySpec
    folder: str
    verdict: str
    """Outcomes in sentences."""
    scope: str
    """Scale, tokens and device of the verdict, and its limits."""
    variants: Sequence[Variant]
    runs: Sequence[RunResult]
    """Those of the whole horizon."""
    replicates: Sequence[Replicate]
    effects: Sequence[Effect]
    grids: Mapping[str, Sequence[float]]
    """The learning rates that count, of each variant."""
    held: Sequence[ControlledVariable]
    tokens_per_run: int
    steps: int
    evaluation_tokens: int
    device: str
    """Such as "one thread of Intel Xeon, bf16, blockwise attention"."""
    predicted_seconds: float
    """Estimated wall time."""
    seconds: float
    """Wall time that runs took."""
    command: str
    """The command that repeats the study."""
    unit: Unit = "nats per token"
    """Of all losses."""
    interactions: Sequence[Interaction] = ()
    """Of each two variants of which a third has the changes of both."""
    shorter_runs: Sequence[RunResult] = ()
    """Those of a share of the steps."""
    drifts: Sequence[Drift] = ()
    """Of a study of widths, which compares no losses."""
    task: TaskFacts | None = None
    """The task that the runs were trained on; None of documents."""
    complete: bool = True
    spikes: Mapping[str, Sequence["Spikes"]] = field(default_factory=dict)
    """Compared runs that ended far above the others of their variant, by variant."""
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
        """Return the learning rates of a variant's compared runs, the first one first."""
        own = [run for run in self.runs if run.variant == name]
        return sorted({run.lr for run in compared_of(own, self.study)}, reverse=True)

    def spikes_at(self, run: RunResult) -> "Spikes | None":
        """Return the spikes at a compared run's learning rate, if any run of its variant spiked there."""
        if run.seed in self.study.tuning_seed_numbers:
            return None
        found = zip(self.spike_rates(run.variant), self.spikes.get(run.variant, ()), strict=False)
        return dict(found).get(run.lr)

    def counts(self, run: RunResult) -> bool:
        """Return False if its variant was trained again at a lower learning rate, because runs spiked."""
        spikes = self.spikes_at(run)
        return not (spikes and spikes.halved)

    @property
    def accuracies(self) -> dict[str, list[float]]:
        """The accuracy of each variant's best run of every seed, of a study on a task."""
        if self.task is None:
            return {}
        found: dict[str, list[float]] = {variant.name: [] for variant in self.variants}
        for replicate in self.replicates:
            found[replicate.variant].append(replicate.best.accuracy)
        return {name: values for name, values in found.items() if values}


def _effect_cells(effect: Effect) -> tuple[str, ...]:
    low, high = signed(effect.interval.low), signed(effect.interval.high)
    numbers = (signed(effect.estimate), f"{low} to {high}") if effect.has_numbers else ("–", "–")
    return effect.variant, effect.outcome, *numbers, str(len(effect.seeds))
