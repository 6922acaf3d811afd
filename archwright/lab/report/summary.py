"""A study's results, put together from its runs: effects, verdict, controlled variables, notes."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from archwright import format as fmt
from archwright.data.store import TokenStore
from archwright.data.task_text import TaskText
from archwright.lab.design import widths
from archwright.lab.design.command_line import Command
from archwright.lab.design.matching import mismatch
from archwright.lab.design.plan import LEAST_STEPS, Arm, Plan, horizons
from archwright.lab.design.variants import SIZES, run_key, set_by, words_of
from archwright.lab.procedure.interactions import interactions
from archwright.lab.procedure.sweep import first_window
from archwright.lab.procedure.verdict import UNLEARNT, effects, scope, spikes_in_words, verdict
from archwright.lab.report.advice import advice, same_size
from archwright.lab.report.multiplier import multiplier_of
from archwright.lab.results import (
    ControlledVariable,
    Drift,
    Effect,
    Replicate,
    RunResult,
    StudyResults,
    TaskFacts,
    Variant,
)
from archwright.lab.running.scheduler import Execution
from archwright.runs import RunFolder
from archwright.spec.optimizers import Optimizer
from archwright.spec.overrides import flatten
from archwright.spec.read import differing
from archwright.spec.schedules import Schedule
from archwright.spec.study_spec import Match
from archwright.training.text_losses import FEW_DOCUMENTS

COUNTED = "  times are counted from FLOPs, as steps of this size are too slow to be timed"

SHOWN = 6
"""Differences of a variant that a plan lists."""

TURNING = 5.0
"""Tokens per parameter below which effects are known to change sign later."""


def results_of(execution: Execution, command: Command, complete: bool) -> StudyResults:
    """Return the current results of a study."""
    plan = execution.plan
    order = {name: i for i, name in enumerate(plan.arms)}
    cells = sorted(execution.results, key=lambda c: (order[c.variant], c.seed, c.k))
    variants, runs = plan.variants(), [execution.results[cell] for cell in cells]
    replicates, now = execution.replicates(), execution.standing()
    sweeps, task = now.sweeps, _task(plan)
    moved: list[Drift] = []
    if plan.study.widths:
        found: list[Effect] = []
        moved, outcome = _of_widths(execution, variants, replicates)
    else:
        given = partial(advice, execution=execution, command=command)
        advised = given if complete else lambda effect: ""
        found, outcome = _compared(execution, runs, replicates, advised)
    unfit = {name for name, sweep in sweeps.items() if sweep.at_boundary}
    unfit |= {effect.variant for effect in found if effect.caveats}
    return StudyResults(
        study=plan.study,
        folder=str(execution.folder),
        verdict=outcome,
        scope=scope_of(execution),
        variants=variants,
        runs=runs,
        replicates=replicates,
        effects=found,
        grids={n: [plan.lr(n, k) for k in sweep.window] for n, sweep in sweeps.items()},
        held=held(plan),
        tokens_per_run=plan.tokens_per_run,
        steps=plan.steps,
        evaluation_tokens=plan.evaluation_tokens,
        device=device_of(execution),
        predicted_seconds=plan.seconds,
        seconds=execution.spent,
        command=str(command),
        unit=plan.unit,
        interactions=interactions(
            plan.study, replicates, plan.baseline.name, unfit, plan.unit, now.placing, now.looks
        ),
        shorter_runs=[execution.shorter[cell] for cell in sorted(execution.shorter)],
        drifts=moved,
        task=task,
        complete=complete,
        spikes=now.spikes,
        notes=[*execution.notes, *_notes(found, replicates, execution)],
    )


def _of_widths(
    execution: Execution, variants: Sequence[Variant], replicates: Sequence[Replicate]
) -> tuple[list[Drift], str]:
    """Return the drift of best rates over widths, and the verdict."""
    plan, ratio = execution.plan, math.log(execution.plan.study.lr_ratio)
    sweeps = execution.standing().sweeps
    steps = {name: ratio * (sweep.window[1] - sweep.window[0]) for name, sweep in sweeps.items()}
    plateau = {name: found.plateau for name, found in execution.counted.items()}
    moved = widths.drifts(replicates, plan.study, steps, plateau)
    tokens, device = plan.tokens_per_run, device_of(execution)
    return moved, widths.verdict(moved, variants, tokens=tokens, text=_text(plan), device=device)


def _compared(
    execution: Execution,
    runs: Sequence[RunResult],
    replicates: Sequence[Replicate],
    advised: Callable[[Effect], str],
) -> tuple[list[Effect], str]:
    """Return each variant against the baseline, and the verdict."""
    plan, now = execution.plan, execution.standing()
    found = effects(
        replicates,
        plan.study,
        plan.baseline.name,
        runs=runs,
        edges=[name for name, sweep in now.sweeps.items() if sweep.at_boundary],
        learnt={name: found.learnt for name, found in execution.counted.items()},
        unlearnt=now.unlearnt,
        unit=plan.unit,
        slope=execution.slope(),
        multiplier=partial(multiplier_of, execution=execution),
        advice=advised,
        **now.judged,
    )
    spikes = spikes_in_words(now.spikes, lambda name: [plan.lr(name, k) for k in now.powers(name)])
    return found, verdict(found, plan.baseline.name, [*spikes])


def scope_of(execution: Execution) -> str:
    """Return the limits of a verdict: scale, short horizon, few documents."""
    plan, base = execution.plan, execution.plan.baseline
    if plan.study.widths:
        return "Measured at these sizes and this token budget only."
    size, device = base.counts.non_embedding, device_of(execution)
    said = [scope(size, plan.tokens_per_run, device, _text(plan))]
    per_parameter = plan.tokens_per_run / base.counts.non_embedding
    task = isinstance(base.material.held_out, TaskText)
    if (per_parameter < TURNING or plan.steps < LEAST_STEPS) and not task:
        said.append(
            f"At {fmt.significant(per_parameter)} tokens a parameter and {plan.steps:,} steps, norms and the like are "
            "known to turn: no norm is better than RMSNorm at 128k tokens and equal at 1M."
        )
    if not task and (documents := base.material.held_out.num_documents) < FEW_DOCUMENTS:
        said.append(
            f"Of this text alone: with {documents} held-out document{'s' * (documents != 1)}, fewer than "
            f"{FEW_DOCUMENTS}, the interval does not speak of other texts."
        )
    return " ".join(said)


def _text(plan: Plan) -> str:
    """Name the task, or the text without its folders."""
    if task := _task(plan):
        return task.name
    names = [Path(text).name or text for text in plan.baseline.run.data.texts]
    return fmt.listed(names) if len(names) < 3 else f"{len(names)} texts"


def _task(plan: Plan) -> TaskFacts | None:
    text = plan.baseline.material.held_out
    if not isinstance(text, TaskText):
        return None
    return TaskFacts(text.task.kind, text.sampler.chance, text.sampler.floor)


def announcement(plan: Plan) -> str:
    """Return the announcement of a plan: its runs and their duration."""
    threads = plan.decisions.machine.threads
    at_once = f"{plan.workers} at a time with {threads} thread{'s' * (threads != 1)} each"
    tuning, seeds = plan.study.tuning_seed_numbers, plan.study.seed_numbers
    by = f"seed{'s' * (len(tuning) > 1)} {fmt.listed([*map(str, tuning)])}"
    few = (
        f"  {plan.steps} step{'s' * (plan.steps != 1)} a run are too few to answer: give {LEAST_STEPS} or more, as "
        f"with --budget {LEAST_STEPS}steps"
    )
    tuned = f"learning rates tuned by {by}, then" if tuning else "each for"
    lines = [
        f"{plan.study.name}: about {plan.num_runs} runs, {at_once}, about {fmt.duration(plan.seconds)}",
        f"each run: {plan.steps:,} steps, {plan.tokens_per_run:,} tokens; judged on {_judged_on(plan)}",
        *([COUNTED] if plan.costs[plan.baseline.name].counted else []),
        *([few] if plan.steps < LEAST_STEPS else []),
        *([_in_steps(plan)] if plan.study.budget.seconds else []),
        f"  {batch_words(plan)}",
        *(line for arm in plan.arms.values() for line in _announced(arm, plan)),
        f"  {tuned} seeds {seeds[0]} to {seeds[-1]}"
        + (
            ""
            if tuning or not plan.study.tune_lr
            else ", learning rates moving on towards lower loss"
        ),
    ]
    return "\n".join(lines)


def _in_steps(plan: Plan) -> str:
    """Return the options for the same runs on a machine of any speed."""
    return f"  the same on any machine: --budget {plan.steps}steps --size {same_size(plan)}"


def batch_words(plan: Plan) -> str:
    """Return the batch and the weight decay of all runs."""
    run = plan.baseline.run
    decay = run.optimizer.model_dump().get("weight_decay")
    values = f"batch {run.batch_size} x {run.model.context_length} tokens"
    values += "" if decay is None else f" and weight decay {decay:g}"
    return f"{values}, not tuned"


def _announced(arm: Arm, plan: Plan) -> Iterator[str]:
    """Yield a variant's size, learning rates, duration of a run, and changes."""
    base = plan.baseline
    size = f"{arm.counts.non_embedding:,} parameters outside embedding and head"
    if arm is not base:
        off = 100 * mismatch(arm.counts, base.counts, "non_embedding")
        size += f" ({off:+.2f} %), FLOPs {100 * mismatch(arm.counts, base.counts, 'flops'):+.1f} %"
    size += "".join(f", {shape}" for shape in _shape(arm, base))
    powers = first_window(plan.study.lr_grid_size) if plan.study.tune_lr else range(1)
    lrs = ", ".join(f"{plan.lr(arm.name, k):.3g}" for k in powers)
    if plan.study.tuning_seed_numbers and arm is not base and arm.name not in plan.own_starts:
        lrs = f"around the best of {base.name}"
    seconds = fmt.duration(plan.run_seconds(arm.name))
    yield f"  {arm.name}: {size}; learning rate {lrs}; {seconds} a run"
    if arm is not base:
        sizes = {f"model.{path}" for path in (*_sizes_of(arm), *_sizes_of(base))}
        words = words_of(plan.study)[arm.name]
        set_here = {run_key(word).partition("=")[0] for word in words if "=" in word}
        # Options that only one of them has follow from its kind, unless the variant sets them.
        changes = [
            f"{path.removeprefix('model.')} {new}" + f" ({old})" * (old != "-")
            for path, (old, new) in differing([base.run, arm.run]).items()
            if path not in sizes and ("-" not in (old, new) or path in set_here)
        ]
        more = f" and {len(changes) - SHOWN} more" * (len(changes) > SHOWN)
        yield f"    differs in {', '.join(changes[:SHOWN]) or 'these sizes'}{more}"


def _shape(arm: Arm, base: Arm) -> Iterator[str]:
    """Yield a variant's widths and masks that differ from the baseline's."""
    if arm is base:
        shown = {p: n for p, n in _sizes_of(arm).items() if p == "dim" or p.endswith("hidden_dim")}
        yield from (f"{path} {value:,}" for path, value in shown.items())
        return
    yield from _other_sizes(arm, base).values()
    values, base_values = (flatten(a.run.model.model_dump()) for a in (arm, base))
    for path, value in values.items():
        axis, _, field = path.rpartition(".")
        default = values.get(path.split(".", 2)[-1]) if axis.startswith("layer_kinds.") else None
        known = (base_values.get(path), default)
        if axis.endswith(".mask") and field != "kind" and value not in known:
            yield f"{path} {value} (texts have {arm.run.model.context_length:,})"


def _sizes_of(arm: Arm) -> dict[str, int]:
    """Return a variant's depth, heads and widths by path.

    A layer kind contributes sizes that differ from the default layer's.
    """
    values = flatten(arm.run.model.model_dump(exclude={"sources"}))
    return {
        path: value
        for path, value in values.items()
        if isinstance(value, int)
        and (path in ("dim", "num_layers") or path.rpartition(".")[2] in SIZES)
        and not (path.startswith("layer_kinds.") and value == values.get(path.split(".", 2)[-1]))
    }


def _other_sizes(arm: Arm, base: Arm) -> dict[str, str]:
    """Return a variant's sizes that differ from the baseline's, in words, by path."""
    others = _sizes_of(base)
    return {
        path: f"{path} {value:,}" + (f" ({base.name} {others[path]:,})" if path in others else "")
        for path, value in _sizes_of(arm).items()
        if value != others.get(path)
    }


def _notes(
    effects: Sequence[Effect], replicates: Sequence[Replicate], execution: Execution
) -> list[str]:
    runs = [*execution.results.values(), *execution.shorter.values()]
    notes = []
    if diverged := [run for run in runs if run.diverged]:
        notes.append(
            f"{len(diverged)} of {len(runs)} runs diverged; each counts as the loss it started from."
        )
    if failed := [run for run in runs if run.failed]:
        notes.append(f"{len(failed)} of {len(runs)} runs failed; the first: {failed[0].failed}.")
    now, study = execution.standing(), execution.plan.study
    for arm in [] if study.widths else execution.plan.arms.values():
        # Matching sets hidden widths.
        sizes = [
            words
            for path, words in _other_sizes(arm, execution.plan.baseline).items()
            if f"model.{path}" not in set_by(arm.words)
            and (study.match == "none" or not path.endswith("hidden_dim"))
        ]
        if sizes:
            notes.append(f"{arm.name} also has {', '.join(sizes)}, which its words do not set.")
    for effect in effects:
        look = now.decisions[effect.variant].look if effect.variant in now.decisions else 0
        if effect.outcome != "inconclusive" and 0 < look < study.seeds:
            notes.append(f"{effect.variant} was decided after {look} of {study.seeds} seeds.")
    if now.unlearnt:
        notes.append(
            f"Not trained further, as more seeds change nothing: {'; '.join(now.unlearnt)}."
        )
    inconclusive = [e.variant for e in effects if e.variant not in now.decisions]
    ended = study.ends[0] if study.ends else len(execution.seeds)
    if (number := study.seeds - ended) > 0 and (inconclusive or study.widths):
        notes.append(
            f"{number} of {study.seeds} seeds {'were' if number > 1 else 'was'} left out: "
            "the budget did not pay for them."
        )
    if horizons(study) and not execution.shorter_pairs:
        made = len(execution.shorter)
        said = f"cut short after {made} runs" if made else "left out"
        notes.append(f"Shorter horizons were {said}: the budget did not pay for them.")
    tuning = execution.plan.study.tuning_seed_numbers
    if not tuning and (edges := sum(r.at_boundary for r in replicates)):
        notes.append(
            f"In {edges} of {len(replicates)} learning-rate sweeps the optimum was at the edge of the grid; "
            "it may lie outside."
        )
    stuck = [
        name
        for name, counted in execution.counted.items()
        if min((r.loss for r in replicates if r.variant == name), default=0.0) > counted.learnt
    ]
    if stuck and study.widths:
        whose = "all of them" if len(stuck) == len(execution.counted) else "; ".join(stuck)
        notes.append(f"Of these, longer runs may like other rates, as they {UNLEARNT}: {whose}.")
    return notes


def device_of(execution: Execution) -> str:
    """Return the device of the runs."""
    recorded = RunFolder(execution.folder).environment()
    machine = execution.plan.decisions.machine
    if recorded.get("gpu"):
        return f"one {recorded['gpu']}"
    threads = "one CPU thread" if machine.threads == 1 else f"{machine.threads} CPU threads"
    name = str(recorded.get("cpu", "")).replace("(R)", "").replace("(TM)", "")
    return f"{threads} ({name})" if name else threads


def held(plan: Plan) -> list[ControlledVariable]:
    """Return the controlled variables, and the uncontrolled ones."""
    run = plan.baseline.run
    machine, arms = plan.decisions.machine, plan.arms.values()
    threads = machine.threads
    tokens = {
        arm.name: f"{arm.run.data.tokenizer.kind}, {arm.material.tokenizer.vocab_size:,} tokens"
        for arm in arms
    }
    common = [
        ControlledVariable("text", ", ".join(run.data.texts)),
        _held("tokenizer", tokens),
        *([_held("text trained on", _text_sizes(plan))] if plan.unit == "bits per byte" else []),
        ControlledVariable("tokens trained on", f"{plan.tokens_per_run:,} in {plan.steps:,} steps"),
        ControlledVariable("batch and weight decay", batch_words(plan)),
        ControlledVariable("judged on", f"the same {_judged_on(plan)}{_documents(plan)}"),
        ControlledVariable(
            "seeds", "initial values drawn by parameter name, and the order of the data"
        ),
        ControlledVariable(
            "precision and kernel", f"{machine.precision}, {machine.kernel} attention"
        ),
        ControlledVariable("threads", f"{threads} a run, {plan.workers} runs at a time"),
    ]
    sizes = {arm.name: _sizes_of(arm) for arm in arms}
    schedules = {arm.name: _settings(arm.run.schedule) for arm in arms}
    optimizers = {
        arm.name: _settings(arm.run.optimizer, without=arm.run.optimizer.learning_rates[0])
        for arm in arms
    }
    untuned = "the baseline's for all: only learning rates are tuned for each variant"
    measured = [
        ControlledVariable("best batch, weight decay and warm-up", untuned, equal=False),
        _held("schedule", schedules),
        _held("optimizer", optimizers),
        _sizes("parameters outside embedding and head", "non_embedding", plan),
        _sizes("all parameters", "parameters", plan),
        _sizes("training FLOPs per token", "flops", plan),
        *(
            _held(
                path,
                {
                    name: f"{found[path]:,}" if path in found else "none"
                    for name, found in sizes.items()
                },
            )
            for path in dict.fromkeys(path for found in sizes.values() for path in found)
        ),
    ]
    return [*common, *measured]


def _judged_on(plan: Plan) -> str:
    final_bytes = plan.baseline.run.evaluate.final_bytes
    shared = (
        ", half for tuning learning rates and half for judging"
        if plan.study.tuning_seed_numbers
        else ""
    )
    if final_bytes is not None:
        return f"{final_bytes:,} held-out bytes{shared}"
    return f"{plan.evaluation_tokens:,} held-out tokens{shared}"


def _documents(plan: Plan) -> str:
    text = plan.baseline.material.held_out
    if not isinstance(text, TokenStore):
        return ""
    return f"; {text.num_documents:,} documents, taken as independent of each other"


def _text_sizes(plan: Plan) -> dict[str, str]:
    """Return the bytes of text that a run's tokens cover, by variant."""
    found = {}
    for arm in plan.arms.values():
        text = arm.material.train
        assert isinstance(text, TokenStore)
        bytes_per_token = text.num_bytes / max(1, len(text) - text.num_documents)
        found[arm.name] = fmt.size(bytes_per_token * plan.tokens_per_run)
    return found


def _held(what: str, by_variant: dict[str, str]) -> ControlledVariable:
    values = set(by_variant.values())
    if len(values) == 1:
        return ControlledVariable(what, values.pop())
    return ControlledVariable(what, "", by_variant, equal=False)


def _sizes(what: str, quantity: Match, plan: Plan) -> ControlledVariable:
    base = plan.baseline.counts
    values = {arm.name: arm.counts.of(quantity) for arm in plan.arms.values()}
    if all(math.isclose(value, base.of(quantity)) for value in values.values()):
        return ControlledVariable(what, f"{base.of(quantity):,.0f}")
    by_variant = {
        arm.name: f"{values[arm.name]:,.0f} ({100 * mismatch(arm.counts, base, quantity):+.2f} %)"
        for arm in plan.arms.values()
    }
    by_variant[plan.baseline.name] = f"{base.of(quantity):,.0f}"
    return ControlledVariable(what, "", by_variant, equal=False)


def _settings(spec: Optimizer | Schedule, without: str = "") -> str:
    values = {k: v for k, v in spec.model_dump().items() if k not in ("kind", without)}
    return ", ".join([spec.kind, *(f"{k} {v}" for k, v in values.items())])
