"""The verb of the lab: from the names of architectures to a verdict on which is better."""

import math
import shlex
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from archwright.checkpoint import atomic_write
from archwright.checkpoint.disk import clear_errors
from archwright.lab import plan as plans
from archwright.lab.arms import is_variant, label, run_key, split
from archwright.lab.execution import Execution
from archwright.lab.matching import mismatch
from archwright.lab.page import write_page, write_tables
from archwright.lab.plan import Plan, slug
from archwright.lab.planner import Planner, usable_cores
from archwright.lab.pool import POOL
from archwright.lab.progress import progress
from archwright.lab.results import Held, Replicate, RunResult, StudyResults
from archwright.lab.sweep import RISE
from archwright.lab.verdict import SCOPE, effects, verdict
from archwright.lab.workers import Workers
from archwright.reporting import words as say
from archwright.runs import RunFolder
from archwright.spec.errors import UserError, nearest
from archwright.spec.read import diff, load_study, read_study, study_names, to_toml
from archwright.spec.run_spec import PartsFile
from archwright.spec.study_spec import StudySpec
from archwright.training.interrupt import Interrupt, interruptions
from archwright.training.material import Material

STUDIES = Path("studies")
"""Where studies are kept when the user names no folder."""


class Interrupted(Exception):  # noqa: N818
    """A study was interrupted; what it has trained is kept, and the same command goes on."""

    def __init__(self, interrupt: Interrupt, results: StudyResults) -> None:
        assert interrupt.signal is not None
        self.signal, self.results = interrupt.signal, results
        super().__init__(f"stopped; what is trained is kept, go on with: {results.command}")


def compare(
    *words: str | StudySpec,
    out: str | Path | None = None,
    runs: str | Path = POOL,
    parts: Sequence[str | Path] = (),
    quiet: bool = False,
    **options: Any,
) -> StudyResults:
    """Train variants as often as their difference needs to be known, and return what follows.

        results = archwright.compare("textbook", "modern", budget="10m", seeds=5)
        print(results.verdict)

    Args:
        words: a baseline and variants, each the name of a model with dotted keys after colons
            (`"modern:norm.kind=layer"`), and dotted keys that all share (`"data.text=notes.txt"`);
            or the name or file of a study; or a StudySpec.
        out: the study's folder; by default studies/<name>.
        runs: where single runs are kept; studies share them.
        parts: files of choices from outside the package.
        quiet: show no progress.
        options: any field of a StudySpec, such as `budget`, `seeds`, `rates`, `size`, `match`.

    Raises:
        UserError: what is wrong with variants, text, budget or folder, one line each.
        Interrupted: Ctrl-C or SIGTERM; the same call goes on.
    """
    files = [Path(file).resolve() for file in parts]
    study = study_of(*words, **options, parts=load(files))
    path = Path(out) if out else STUDIES / slug(study.name)
    command = command_of(study, out, parts)
    with planned_or_gone(path), (folder := open_study(path, study)).lock():
        with Workers(usable_cores(), path / "log.txt", files) as crew:
            plan = plans.saved(study, folder)
            if plan is None:
                progress(quiet).say("planning: every variant is built and timed")
                plan = Planner(study, folder, crew).plan()
                plans.save(plan, folder)
            execution = Execution(plan, path, Path(runs))
            with interruptions() as interrupt, progress(quiet) as shown:
                shown.say(announcement(plan))
                complete = execution.run(crew, shown, interrupt)
            if interrupt:
                shown.say("saving what is being trained")
        results = results_of(execution, command, complete)
        write_tables(results, path)
        write_page(results, path)
    if interrupt:
        raise Interrupted(interrupt, results)
    return results


def plan(
    *words: str | StudySpec,
    out: str | Path | None = None,
    parts: Sequence[str | Path] = (),
    **options: Any,
) -> Plan:
    """Return what `compare` would run, and how long that would take, without training.

    Raises:
        UserError: as `compare` does.
    """
    import tempfile

    files = [Path(file).resolve() for file in parts]
    study = study_of(*words, **options, parts=load(files))
    path = Path(out) if out else STUDIES / slug(study.name)
    known = path / plans.PLAN
    if known.is_file():
        folder = open_study(path, study)
        found = plans.saved(study, folder)
        assert found
        return found
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log.txt"
        with Workers(usable_cores(), log, files) as crew:
            return Planner(study, RunFolder(scratch), crew).plan()


def load(files: Sequence[Path]) -> tuple[PartsFile, ...]:
    """Let choices in files join the package's; return what a study records of the files."""
    if not files:
        return ()
    from archwright.parts.outside import load_parts_file

    return tuple(PartsFile(name=file.name, sha256=load_parts_file(file)) for file in files)


def study_of(
    *words: str | StudySpec, parts: tuple[PartsFile, ...] = (), **options: Any
) -> StudySpec:
    """Return the study that words ask for; see `compare`.

    Raises:
        UserError: words that are none, or unknown, one line each.
    """
    names = [w for w in words if isinstance(w, StudySpec) or is_variant(w)]
    common = [str(w) for w in words if w not in names]
    study = _named_study(names)
    common = [run_key(word) for word in common]
    assignments = [f"{key}={_toml(value)}" for key, value in options.items() if value is not None]
    if common:
        study = study.model_copy(update={"common": (*study.common, *common)})
    study = study.override(*assignments) if assignments else study
    return study.model_copy(update={"name": study.name or _name(study), "parts": parts})


def _named_study(names: Sequence[str | StudySpec]) -> StudySpec:
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
    if not rest:
        raise UserError(
            f'compare "{first}" with what? Name a second model, or one of the studies '
            f"{', '.join(study_names())}.{nearest(str(first), study_names())}"
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


def _name(study: StudySpec) -> str:
    return slug("-".join([label(study.baseline), *study.variants]))


def _toml(value: Any) -> str:
    return str(list(value)) if isinstance(value, (tuple, list)) else str(value)


@contextmanager
def planned_or_gone(path: Path) -> Iterator[None]:
    """Remove a study's folder if the block fails before the study is planned, so that a mistake leaves nothing
    behind."""
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    except BaseException:
        if made and not (path / plans.PLAN).exists():
            shutil.rmtree(path, ignore_errors=True)
            for folder in made[1:]:
                with suppress(OSError):
                    folder.rmdir()
        raise


def open_study(path: Path, study: StudySpec) -> RunFolder:
    """Return the folder of a study, made if it is not there.

    Raises:
        UserError: it holds another study, or anything else.
    """
    file = path / "study.toml"
    if file.is_file() and (path / plans.PLAN).exists():
        lines = diff(read_study(file), study)
        if lines:
            raise UserError(
                f"{path} holds another study ({'; '.join(lines[:4])}). Give this one a folder of its own: --out DIR"
            )
    elif path.exists() and not file.is_file() and any(path.iterdir()):
        raise UserError(f"{path} is not a study and not empty. Give --out a new or empty folder")
    else:
        with clear_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        atomic_write(file, to_toml(study))
    return RunFolder(path)


def command_of(
    study: StudySpec, out: str | Path | None = None, parts: Sequence[str | Path] = ()
) -> str:
    """Return the command line of a study."""
    default = StudySpec()
    words = ["archwright", "compare"]
    if study.name in study_names():
        words.append(study.name)
        default = load_study(study.name)
    else:
        words += [label(study.baseline), *(_variant_word(n, w) for n, w in study.variants.items())]
    words += [word for word in study.common if word not in default.common]
    for name in OPTIONS:
        value = getattr(study, name)
        if value != getattr(default, name):
            words += [f"--{name.replace('_', '-')}", _option(value)]
    for file in parts:
        words += ["--parts", str(file)]
    return shlex.join([*words, *(["--out", str(out)] if out else [])])


OPTIONS = (
    "budget",
    "seeds",
    "first_seed",
    "rates",
    "grid",
    "ratio",
    "size",
    "match",
    "margin",
    "lengths",
    "evaluation_tokens",
)
"""Fields of a study that the command line has options for."""


def _variant_word(name: str, words: Sequence[str]) -> str:
    return label(words) if "=" not in words[0] else f":{label(words)}"


def _option(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def announcement(plan: Plan) -> str:
    """Say what is about to be run."""
    threads = plan.decisions.machine.threads
    at_once = f"{plan.workers} at a time with {threads} thread{'s' * (threads != 1)} each"
    base = plan.baseline
    lines = [
        f"{plan.study.name}: about {plan.num_runs} runs, {at_once}, about {say.duration(plan.seconds)}",
        f"each run: {plan.steps:,} steps, {plan.tokens_per_run:,} tokens; judged on "
        f"{plan.evaluation_tokens:,} held-out tokens",
    ]
    for arm in plan.arms.values():
        off = 100 * mismatch(arm.counts, base.counts, "non_embedding")
        flops = 100 * mismatch(arm.counts, base.counts, "flops")
        size = f"{arm.counts.non_embedding:,} parameters outside embedding and head"
        more = "" if arm is base else f" ({off:+.2f} %), FLOPs {flops:+.1f} %"
        lines.append(f"  {arm.name}: {size}{more}")
    return "\n".join(lines)


def results_of(execution: Execution, command: str, complete: bool) -> StudyResults:
    """Return what a study found so far."""
    plan = execution.plan
    order = {name: i for i, name in enumerate(plan.arms)}
    cells = sorted(execution.results, key=lambda c: (order[c.variant], c.seed, c.k))
    variants, runs = plan.variants(), [execution.results[cell] for cell in cells]
    replicates, sweeps = execution.replicates(), execution.sweeps()
    found = effects(
        replicates,
        plan.study,
        plan.baseline.name,
        variants=variants,
        runs=runs,
        edges=[name for name, sweep in sweeps.items() if sweep.edge],
        unigram_entropy=unigram_entropy(plan.material),
    )
    device = device_of(plan, execution)
    return StudyResults(
        study=plan.study,
        folder=str(execution.folder),
        verdict=verdict(
            found,
            plan.baseline.name,
            parameters=plan.baseline.counts.non_embedding,
            tokens=plan.tokens_per_run,
            device=device,
        ),
        scope=SCOPE,
        variants=variants,
        runs=runs,
        replicates=replicates,
        effects=found,
        grids={n: [plan.rate(n, k) for k in sweep.window] for n, sweep in sweeps.items()},
        held=held(plan),
        tokens_per_run=plan.tokens_per_run,
        steps=plan.steps,
        evaluation_tokens=plan.evaluation_tokens,
        device=device,
        predicted_seconds=plan.seconds,
        seconds=execution.spent,
        command=command,
        complete=complete,
        notes=[*execution.notes, *_notes(replicates, execution)],
    )


def _notes(replicates: Sequence[Replicate], execution: Execution) -> list[str]:
    runs = execution.results.values()
    notes = []
    if diverged := [run for run in runs if run.diverged]:
        notes.append(
            f"{len(diverged)} of {len(runs)} runs diverged; each counts as the loss it started from."
        )
    if failed := [run for run in runs if run.failed]:
        notes.append(f"{len(failed)} of {len(runs)} runs failed; the first: {failed[0].failed}.")
    if edges := sum(r.at_edge for r in replicates):
        notes.append(
            f"In {edges} of {len(replicates)} sweeps the best learning rate was at an end of the grid."
        )
    for name in execution.plan.arms:
        if _is_coarse([r for r in replicates if r.variant == name], runs):
            notes.append(
                f"The grid of learning rates is coarse for {name}: to both sides of the best its loss rises by more "
                f"than {100 * RISE:.0f} %, so that it may do better between. A smaller --ratio is finer."
            )
    return notes


def _is_coarse(replicates: Sequence[Replicate], runs: Collection[RunResult]) -> bool:
    """Return whether the valley of most seeds is narrower than the grid resolves."""

    def narrow(found: Replicate) -> bool:
        sweep = sorted(
            (r for r in runs if (r.variant, r.seed) == (found.variant, found.seed)),
            key=lambda r: r.rate,
        )
        best = sweep.index(found.best)
        beside = [r.loss for r in sweep[max(0, best - 1) : best + 2] if r is not found.best]
        return len(beside) == 2 and min(beside) > (1 + RISE) * found.best.loss

    return sum(map(narrow, replicates)) > len(replicates) / 2


def unigram_entropy(material: Material) -> float:
    """Return the entropy of single held-out tokens, in nats: the loss of a model that learnt how often each
    occurs."""
    tokens = material.held_out.read(0, min(len(material.held_out), 1_000_000))
    counts = np.bincount(np.asarray(tokens, dtype=np.int64))
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def device_of(plan: Plan, execution: Execution) -> str:
    """Say what the runs were trained on."""
    told = RunFolder(execution.folder).environment()
    machine = plan.decisions.machine
    if told.get("gpu"):
        return f"one {told['gpu']}"
    threads = "one CPU thread" if machine.threads == 1 else f"{machine.threads} CPU threads"
    name = str(told.get("cpu", "")).replace("(R)", "").replace("(TM)", "")
    return f"{threads} ({name})" if name else threads


def held(plan: Plan) -> list[Held]:
    """Return what the variants have in common, and what they could not have."""
    base, run = plan.baseline, plan.baseline.run
    machine, tokenizer = plan.decisions.machine, plan.material.tokenizer
    arms = plan.arms.values()
    common = [
        Held("text", ", ".join(run.data.text)),
        Held("tokenizer", f"{run.data.tokenizer.kind}, {tokenizer.vocab_size:,} tokens"),
        Held("tokens trained on", f"{plan.tokens_per_run:,} in {plan.steps:,} steps"),
        Held("batch", f"{run.batch_size} texts of {run.model.context_length} tokens"),
        Held("judged on", f"the same {plan.evaluation_tokens:,} held-out tokens"),
        Held("seeds", "initial values drawn by parameter name, and the order of the data"),
        Held("precision and kernel", f"{machine.precision}, {machine.kernel} attention"),
        Held("threads", f"{machine.threads} a run, {plan.workers} runs at a time"),
    ]
    schedules = {arm.name: _told(arm.run.schedule) for arm in arms}
    optimizers = {arm.name: _told(arm.run.optimizer, without="lr") for arm in arms}
    measured = [
        _held("schedule", schedules),
        _held("optimizer", optimizers),
        _sizes("parameters outside embedding and head", "non_embedding", plan),
        _sizes("all parameters", "parameters", plan),
        _sizes("training FLOPs per token", "flops", plan),
        _held("width", {arm.name: f"{arm.run.model.dim:,}" for arm in arms}),
        _held("layers", {arm.name: f"{arm.run.model.num_layers:,}" for arm in arms}),
    ]
    assert base
    return [*common, *measured]


def _held(what: str, by_variant: dict[str, str]) -> Held:
    values = set(by_variant.values())
    if len(values) == 1:
        return Held(what, values.pop())
    return Held(what, "", by_variant, equal=False)


def _sizes(what: str, quantity: Any, plan: Plan) -> Held:
    base = plan.baseline.counts
    by_variant = {}
    for arm in plan.arms.values():
        off = 100 * mismatch(arm.counts, base, quantity)
        more = "" if arm is plan.baseline else f" ({off:+.2f} %)"
        by_variant[arm.name] = f"{arm.counts.of(quantity):,.0f}{more}"
    exact = all(
        math.isclose(arm.counts.of(quantity), base.of(quantity)) for arm in plan.arms.values()
    )
    return Held(what, f"{base.of(quantity):,.0f}") if exact else Held(what, "", by_variant, False)


def _told(spec: Any, without: str = "") -> str:
    values = {k: v for k, v in spec.model_dump().items() if k not in ("kind", without)}
    return ", ".join([spec.kind, *(f"{k} {v}" for k, v in values.items())])
