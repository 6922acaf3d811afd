"""Plan of a study: its runs and their costs, with the files of the study's folder."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from archwright.data.task_text import TaskText
from archwright.files import atomic_write
from archwright.lab.design import plan_file
from archwright.lab.design.matching import Counts
from archwright.lab.design.plan_file import PLAN, ArmRecord, Cost, PlanRecord
from archwright.lab.design.variants import with_lr
from archwright.lab.procedure.constants import PAIRS
from archwright.lab.results import Unit, Variant
from archwright.machine.decide import Decisions, environment
from archwright.runs import RunFolder
from archwright.spec.read import diff, read_run, to_toml
from archwright.spec.run_spec import RunSpec
from archwright.spec.study_spec import StudySpec
from archwright.training.data import Material, reload_data
from archwright.training.resolve import EVALUATIONS, with_steps

STUDY = "study.toml"
"""File of the study in its folder."""

LEAST_STEPS = 500
"""Fewest steps of a run for a time budget. With fewer, post-norm models have learnt only token frequencies, and the
order of models still changes."""

EXTRA_LRS = 1.5
"""Mean number of runs of each variant in addition to its grid, in a study of widths."""
FINER_LRS = 2.0
"""Mean number of the baseline's tuning runs in addition to its grid, to move or refine it."""
MOVED_LRS = 0.5
"""Mean number of a variant's tuning runs in addition to its grid around the baseline's best rate."""


class Cell(NamedTuple):
    """Run of a study, at the k-th learning rate of the variant's lattice."""

    variant: str
    seed: int
    k: float
    share: float = 1.0
    """Share of the study's steps."""


@dataclass(frozen=True)
class Arm:
    """Trained variant, complete except for seed and learning rate."""

    name: str
    words: tuple[str, ...]
    run: RunSpec
    counts: Counts
    material: Material
    """Tokens, shared by variants with the same tokenizer."""


@dataclass(frozen=True)
class Plan:
    """Complete plan of a study."""

    study: StudySpec
    arms: Mapping[str, Arm]
    decisions: Decisions
    workers: int
    steps: int
    evaluation_tokens: int
    costs: Mapping[str, Cost]
    shorter_pairs: int = PAIRS
    """Most pairs that are also trained for shares of the steps."""

    @property
    def baseline(self) -> Arm:
        return next(iter(self.arms.values()))

    @property
    def own_starts(self) -> set[str]:
        """Variants with another optimizer or peak learning rate than the baseline."""
        starts = {
            name: (arm.run.optimizer.kind, arm.run.optimizer.peak_lr)
            for name, arm in self.arms.items()
        }
        return {name for name, start in starts.items() if start != starts[self.baseline.name]}

    @property
    def unit(self) -> Unit:
        """Unit of losses: bits per byte if tokenizers differ."""
        if isinstance(self.baseline.material.held_out, TaskText):
            return "nats per answer"
        objective = self.baseline.run.objective
        return "bits per byte" if len(tokenizers(self.arms)) > 1 else objective.loss_unit

    @property
    def tokens_per_run(self) -> int:
        """Training tokens of a run."""
        return self.steps * self.baseline.run.tokens_per_step

    @property
    def num_runs(self) -> int:
        """Mean number of runs of the study."""
        return runs_of(self.study, len(self.arms), self.shorter_pairs)

    def run_seconds(self, name: str, share: float = 1.0, *, tunes: bool = False) -> float:
        """Return the seconds of a variant's run, of a share of the steps, or for tuning."""
        has_curve = not (tunes or share < 1)
        tokens = evaluated(self.baseline.run, self.evaluation_tokens, has_curve=has_curve)
        return self.costs[name].run(self.steps_of(name, share), tokens)

    def tunes(self, seed: int) -> bool:
        """True if a seed tunes learning rates and is not compared."""
        return seed in self.study.tuning_seed_numbers

    @property
    def seconds(self) -> float:
        """Wall time of all runs."""
        tuning, compared = tuning_runs_each(self.study), compared_runs_each(self.study)
        work = sum(
            tuning * self.run_seconds(name, tunes=True)
            + compared * self.run_seconds(name)
            + min(self.shorter_pairs, self.study.seeds)
            * sum(self.run_seconds(name, share) for share in horizons(self.study))
            for name in self.arms
        )
        return work / min(self.workers, max(1, self.num_runs))

    def lr(self, name: str, k: float) -> float:
        """Return the k-th learning rate of a variant's lattice."""
        return float(f"{self.arms[name].run.optimizer.peak_lr * self.study.lr_ratio**k:.4g}")

    def run(self, name: str, seed: int, k: float, share: float = 1.0) -> RunSpec:
        """Return a run of the study, or its version of a share of the steps."""
        run = with_lr(self.arms[name].run, self.lr(name, k)).model_copy(update={"seed": seed})
        if share < 1:
            run = of_steps(run, self.steps_of(name, share), share)
        if share < 1 or self.tunes(seed):  # only the final loss is used
            at_the_end = run.evaluate.model_copy(update={"every": run.machine.num_steps})
            run = run.model_copy(update={"evaluate": at_the_end})
        return run

    def steps_of(self, name: str, share: float = 1.0) -> int:
        """Return the steps of a variant for a share of the tokens, at least 1."""
        return max(1, round(share * self.tokens_per_run / self.arms[name].run.tokens_per_step))

    def variants(self) -> list[Variant]:
        """Return a description of each variant."""
        return [self._variant(arm) for arm in self.arms.values()]

    def _variant(self, arm: Arm) -> Variant:
        model = arm.run.model
        layers = [layer.feedforward.hidden_layer for layer in model.layers_by_kind.values()]
        return Variant(
            name=arm.name,
            words=arm.words,
            changes=[] if arm is self.baseline else diff(self.baseline.run, arm.run),
            **asdict(arm.counts),
            dim=model.dim,
            num_layers=model.num_layers,
            hidden_dims=[int(layer.hidden_dim) for layer in layers if layer],
        )


def of_steps(run: RunSpec, steps: int, share: float) -> RunSpec:
    """Return a run of `steps`, with a `share` of its warm-up and evaluation interval."""
    assert isinstance(run.schedule.warmup, int)
    warmup = max(1, round(share * run.schedule.warmup)) if run.schedule.warmup else 0
    every = max(1, round(share * run.evaluate.every))
    update = {
        "schedule": run.schedule.model_copy(update={"warmup": warmup}),
        "evaluate": run.evaluate.model_copy(update={"every": every}),
    }
    return with_steps(run.model_copy(update=update), steps)


def tokenizers(arms: Mapping[str, Arm]) -> list[Material]:
    """Return the material of each tokenizer, the baseline's first."""
    materials = {arm.material.tokenizer.fingerprint: arm.material for arm in arms.values()}
    return [*materials.values()]


def runs_of(study: StudySpec, variants: int, pairs: int = PAIRS) -> int:
    """Return the mean number of runs of a study, the baseline included in `variants`."""
    shorter = min(pairs, study.seeds) * len(horizons(study))
    return round((runs_each(study) + shorter) * variants)


def runs_each(study: StudySpec) -> float:
    """Return the mean number of full runs of each variant without early decisions."""
    return tuning_runs_each(study) + compared_runs_each(study)


def tuning_runs_each(study: StudySpec) -> float:
    """Return the mean number of tuning runs of each variant that are not compared."""
    if not study.tuning_seed_numbers:
        return 0.0
    variants = len(study.variants)
    moves = (FINER_LRS + variants * MOVED_LRS) / (1 + variants)
    return len(study.tuning_seed_numbers) * study.lr_grid_size + moves


def compared_runs_each(study: StudySpec) -> float:
    """Return the mean number of compared runs of each variant."""
    if study.widths:
        return study.seeds * study.lr_grid_size + EXTRA_LRS
    return len(study.seed_numbers)


def horizons(study: StudySpec) -> tuple[float, ...]:
    """Return the shorter horizons of a study, as shares of the steps."""
    return () if study.widths else study.horizons


def evaluated(run: RunSpec, final: int, *, has_curve: bool = True) -> int:
    """Return the tokens of a run's evaluations: of its curve, if any, and at its end."""
    points = EVALUATIONS if has_curve else 1
    return points * run.evaluate.max_tokens + final * (1 + len(run.evaluate.lengths))


def save(plan: Plan, folder: RunFolder) -> None:
    """Write a plan into the folder of its study, with plan.json as the last file."""
    files = [variant_file(plan.arms, arm.name) for arm in plan.arms.values()]
    for file, arm in zip(files, plan.arms.values(), strict=True):
        (folder.path / file).parent.mkdir(exist_ok=True)
        atomic_write(folder.path / file, to_toml(arm.run))
    materials = tokenizers(plan.arms)
    places = [tokenizer_folder(folder.path, number) for number in range(len(materials))]
    for place, material in zip(places, materials, strict=True):
        machine = environment(plan.decisions) if place == folder.path else {}
        RunFolder(place).write_environment(machine | {"data": material.record()})
    numbers = {material.tokenizer.fingerprint: i for i, material in enumerate(materials)}
    record = PlanRecord(
        workers=plan.workers,
        steps=plan.steps,
        horizons=plan.study.horizons,
        shorter_pairs=plan.shorter_pairs,
        ends=plan.study.ends,
        evaluation_tokens=plan.evaluation_tokens,
        arms=tuple(
            ArmRecord(
                name=name,
                words=arm.words,
                tokenizer=numbers[arm.material.tokenizer.fingerprint],
                counts=arm.counts,
                cost=plan.costs[name],
            )
            for name, arm in plan.arms.items()
        ),
    )
    name = folder.environment_file.name
    environments = [(place / name).relative_to(folder.path) for place in places]
    sealed = (Path(STUDY), *environments, *files)
    plan_file.write(record, folder.path, [f for f in sealed if (folder.path / f).is_file()])


def saved(study: StudySpec, folder: RunFolder) -> Plan | None:
    """Return the plan in a study's folder, if any."""
    if not (folder.path / PLAN).exists():
        return None
    record = plan_file.read(folder.path)
    names = [arm.name for arm in record.arms]
    runs = {name: read_run(folder.path / variant_file(names, name)) for name in names}
    materials: dict[int, Material] = {}
    for arm in record.arms:
        if arm.tokenizer not in materials:
            place = RunFolder(tokenizer_folder(folder.path, arm.tokenizer))
            materials[arm.tokenizer] = reload_data(runs[arm.name], place)
    return Plan(
        study=study.model_copy(update={"horizons": record.horizons, "ends": record.ends}),
        arms={
            a.name: Arm(a.name, a.words, runs[a.name], a.counts, materials[a.tokenizer])
            for a in record.arms
        },
        decisions=Decisions(runs[names[0]].machine, folder.environment()["peak_flops"]),
        workers=record.workers,
        steps=record.steps,
        evaluation_tokens=record.evaluation_tokens,
        costs={arm.name: arm.cost for arm in record.arms},
        shorter_pairs=record.shorter_pairs,
    )


def variant_file(names: Iterable[str], name: str) -> Path:
    """Return the path of a variant's run, relative to the study's folder."""
    return Path("variants") / f"{list(names).index(name)}-{slug(name)}.toml"


def tokenizer_folder(folder: Path, number: int) -> Path:
    """Return the folder of a tokenizer: for number 0, the study's folder."""
    return folder / "tokenizers" / str(number) if number else folder


def slug(name: str) -> str:
    """Return a name with characters for file names only."""
    safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in name)
    return safe.strip("-.")[:60] or "study"
