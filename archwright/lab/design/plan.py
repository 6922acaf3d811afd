"""A study that is decided: what runs, with what, for how long; and how that is written down."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from archwright.data.task_text import TaskText
from archwright.files import atomic_write
from archwright.lab.design import plan_file
from archwright.lab.design.matching import Counts
from archwright.lab.design.plan_file import PLAN, ArmRecord, Cost, PlanRecord
from archwright.lab.design.variants import with_lr
from archwright.lab.procedure.standing import PAIRS
from archwright.lab.results import Unit, Variant
from archwright.machine.decide import Decisions, environment
from archwright.runs import RunFolder
from archwright.spec.read import diff, read_run, to_toml
from archwright.spec.run_spec import RunSpec
from archwright.spec.study_spec import StudySpec
from archwright.training.data import Material, reload_data
from archwright.training.resolve import EVALUATIONS, with_steps

STUDY = "study.toml"
"""The study as it was asked for, in its folder."""

LEAST_STEPS = 500
"""Steps of a run below which a study cannot answer: post-norm models are then on the plateau on which they know how
often tokens occur, and the order of others still changes. A budget in time that pays for fewer is refused."""

EXTRA_LRS = 1.5
"""Runs of each variant beside its grid, about, to find where the grid belongs."""
FINER_LRS = 2.0
"""Runs of the seed that tunes a baseline beside its grid, about: where it moves, or becomes finer."""
MOVED_LRS = 0.5
"""The same of a variant, which starts around the baseline's best rate."""
STEEP_SHARE = 0.1
"""Share of variants that are tuned by more than one seed, about: 1 of the 10 of `ten-choices`; studies of post-norm or
of large steps have more."""


class Cell(NamedTuple):
    """One run of a study: the learning rate is the k-th of the variant's lattice."""

    variant: str
    seed: int
    k: float
    share: float = 1.0
    """Share of the study's steps."""


@dataclass(frozen=True)
class Arm:
    """A variant as it is trained: all is decided but seed and learning rate."""

    name: str
    words: tuple[str, ...]
    run: RunSpec
    counts: Counts
    material: Material
    """Its tokens; those of all variants unless they differ in the tokenizer."""


@dataclass(frozen=True)
class Plan:
    """A study that is decided."""

    study: StudySpec
    arms: Mapping[str, Arm]
    decisions: Decisions
    workers: int
    steps: int
    evaluation_tokens: int
    costs: Mapping[str, Cost]
    shorter_pairs: int = PAIRS
    """Pairs that are trained again for shares of the steps, at most."""

    @property
    def baseline(self) -> Arm:
        """The first variant."""
        return next(iter(self.arms.values()))

    @property
    def own_starts(self) -> set[str]:
        """Variants whose best learning rate does not follow from the baseline's."""
        own = self.baseline.run.optimizer
        found = {name: arm.run.optimizer for name, arm in self.arms.items()}
        return {
            name
            for name, optimizer in found.items()
            if (optimizer.kind, optimizer.peak_lr) != (own.kind, own.peak_lr)
        }

    @property
    def unit(self) -> Unit:
        """Of losses: bits per byte, where the tokens of variants are not the same ones."""
        if isinstance(self.baseline.material.held_out, TaskText):
            return "nats per answer"
        objective = self.baseline.run.objective
        return "bits per byte" if len(tokenizers(self.arms)) > 1 else objective.loss_unit

    @property
    def tokens_per_run(self) -> int:
        """Tokens that each run trains on."""
        return self.steps * self.baseline.run.tokens_per_step

    @property
    def num_runs(self) -> int:
        """Runs of the whole study, about."""
        return runs_of(self.study, len(self.arms), self.shorter_pairs)

    def run_seconds(self, name: str, share: float = 1.0, *, tunes: bool = False) -> float:
        """Return the seconds that a run of a variant takes, one of a share of its steps, or one that tunes."""
        has_curve = not (tunes or share < 1)
        tokens = evaluated(self.baseline.run, self.evaluation_tokens, has_curve=has_curve)
        return self.costs[name].run(self.steps_of(share), tokens)

    def tunes(self, seed: int) -> bool:
        """Tell whether the runs of a seed place learning rates and are not compared."""
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
        """Return one run of the study, of all its steps or of a share of them, which the warm-up has, too."""
        run = with_lr(self.arms[name].run, self.lr(name, k)).model_copy(update={"seed": seed})
        if share < 1:
            run = of_steps(run, self.steps_of(share), share)
        if share < 1 or self.tunes(seed):  # only the loss at its end counts
            at_the_end = run.evaluate.model_copy(update={"every": run.machine.num_steps})
            run = run.model_copy(update={"evaluate": at_the_end})
        return run

    def steps_of(self, share: float) -> int:
        """Return the steps of runs that have a share of them."""
        return max(1, round(share * self.steps))

    def variants(self) -> list[Variant]:
        """Return what the variants are, for the reader."""
        found = []
        for arm in self.arms.values():
            model = arm.run.model
            layers = [layer.feedforward.hidden_layer for layer in model.layers_by_kind.values()]
            found.append(
                Variant(
                    name=arm.name,
                    words=arm.words,
                    changes=[] if arm is self.baseline else diff(self.baseline.run, arm.run),
                    parameters=arm.counts.parameters,
                    non_embedding=arm.counts.non_embedding,
                    flops_per_token=arm.counts.flops_per_token,
                    cache_bytes=arm.counts.cache_bytes,
                    dim=model.dim,
                    num_layers=model.num_layers,
                    hidden_dims=[int(layer.hidden_dim) for layer in layers if layer],
                )
            )
        return found


def of_steps(run: RunSpec, steps: int, share: float) -> RunSpec:
    """Return a run of other steps, a `share` of its own, as large for the warm-up and between evaluations."""
    assert isinstance(run.schedule.warmup, int)
    warmup = max(1, round(share * run.schedule.warmup)) if run.schedule.warmup else 0
    every = max(1, round(share * run.evaluate.every))
    update = {
        "schedule": run.schedule.model_copy(update={"warmup": warmup}),
        "evaluate": run.evaluate.model_copy(update={"every": every}),
    }
    return with_steps(run.model_copy(update=update), steps)


def tokenizers(arms: Mapping[str, Arm]) -> list[Material]:
    """Return the material of each tokenizer that variants have, the baseline's first."""
    found = {arm.material.tokenizer.fingerprint: arm.material for arm in arms.values()}
    return [*found.values()]


def runs_of(study: StudySpec, variants: int, pairs: int = PAIRS) -> int:
    """Return the mean number of runs of a study of so many variants, the baseline among them."""
    shorter = min(pairs, study.seeds) * len(horizons(study))
    return round((runs_each(study) + shorter) * variants)


def runs_each(study: StudySpec) -> float:
    """Return the mean number of runs of each variant if nothing is decided early."""
    return tuning_runs_each(study) + compared_runs_each(study)


def tuning_runs_each(study: StudySpec) -> float:
    """Return how many of them place learning rates and are not compared."""
    if not study.tuning_seed_numbers:
        return 0.0
    variants = len(study.variants)
    moves = (FINER_LRS + variants * MOVED_LRS) / (1 + variants)
    more = STEEP_SHARE * (len(study.tuning_seed_numbers) - 1) * study.lr_grid_size
    return study.lr_grid_size + moves + more


def compared_runs_each(study: StudySpec) -> float:
    """Return how many of them are compared; where each seed sweeps, all."""
    if study.widths:
        return study.seeds * study.lr_grid_size + EXTRA_LRS
    return len(study.seed_numbers)


def horizons(study: StudySpec) -> tuple[float, ...]:
    """Return the shares of the steps for which a study trains its first pairs again."""
    return () if study.widths else study.horizons


def evaluated(run: RunSpec, final: int, *, has_curve: bool = True) -> int:
    """Return the tokens that a run evaluates on: the sample of its curve, else once at its end, and all of them."""
    points = EVALUATIONS if has_curve else 1
    return points * run.evaluate.max_tokens + final * (1 + len(run.evaluate.lengths))


def save(plan: Plan, folder: RunFolder) -> None:
    """Write a plan into the folder of its study; plan.json last, as it makes the others binding."""
    files = [variant_file(plan.arms, arm.name) for arm in plan.arms.values()]
    for file, arm in zip(files, plan.arms.values(), strict=True):
        (folder.path / file).parent.mkdir(exist_ok=True)
        atomic_write(folder.path / file, to_toml(arm.run))
    materials = tokenizers(plan.arms)
    places = [tokenizer_folder(folder.path, number) for number in range(len(materials))]
    for place, material in zip(places, materials, strict=True):
        known = environment(plan.decisions) if place == folder.path else {}
        RunFolder(place).write_environment(known | {"data": material.record()})
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
                name=arm.name,
                words=arm.words,
                tokenizer=numbers[arm.material.tokenizer.fingerprint],
                counts=arm.counts,
                cost=plan.costs[arm.name],
            )
            for arm in plan.arms.values()
        ),
    )
    name = folder.environment_file.name
    environments = [(place / name).relative_to(folder.path) for place in places]
    sealed = (Path(STUDY), *environments, *files)
    plan_file.write(record, folder.path, [f for f in sealed if (folder.path / f).is_file()])


def saved(study: StudySpec, folder: RunFolder) -> Plan | None:
    """Return the plan in a study's folder, or None if there is none."""
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
    """Return the path of a variant's run in the study's folder."""
    return Path("variants") / f"{list(names).index(name)}-{slug(name)}.toml"


def tokenizer_folder(folder: Path, number: int) -> Path:
    """Return the folder of a tokenizer and of the record of its tokens; the first is the study's."""
    return folder / "tokenizers" / str(number) if number else folder


def slug(name: str) -> str:
    """Return a name as files may have it."""
    kept = "".join(c if c.isalnum() or c in "._-" else "-" for c in name)
    return kept.strip("-.")[:60] or "study"
