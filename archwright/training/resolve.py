"""Resolution of a run: each "auto" becomes a value, by a rule or a measurement."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from archwright import checkpoint
from archwright.data.batches import Batches, BatchSource
from archwright.data.objectives import Examples, Vocabulary
from archwright.data.pair_text import PairBatches, PairText
from archwright.data.task_text import TaskBatches, TaskText
from archwright.format import size
from archwright.machine.compiling import compile_parts
from archwright.machine.decide import (
    Decisions,
    check_stream,
    decide,
    decide_kernel,
    decide_loss,
    decide_scan,
    decided,
)
from archwright.machine.liger import fuse, why_not_fusable
from archwright.model.build import build, initial_values
from archwright.model.model import Decoder
from archwright.optim import warmup_steps
from archwright.parts.mixers.recurrent import use_scan
from archwright.planning.cost import run_flops_per_token
from archwright.planning.memory import free_memory, least_memory, total_memory
from archwright.planning.training_memory import split_one
from archwright.runs import RunFolder
from archwright.scale.layout import AXES, ONE, Layout
from archwright.scale.processes import ALONE, OneOf, Processes, share_threads
from archwright.spec.errors import UserError
from archwright.spec.machine import MachineSpec
from archwright.spec.run_spec import RunSpec
from archwright.spec.scale import ScaleSpec
from archwright.training.data import Material, settled_task
from archwright.training.progress import Progress
from archwright.training.session import Session
from archwright.training.trials import (
    LONG,
    NOT_TRIED,
    compile_for_cuda,
    compile_if_faster,
    fuse_if_faster,
)

EVALUATIONS = 10
"""Default number of evaluations of a run."""
WARM_SECONDS = 0.3
"""Longest time for timing steps, which is lost for training; at most 1/20 of the budget."""


def resolve(
    run: RunSpec, material: Material, progress: Progress, layout: Layout = ONE
) -> tuple[Session, Decisions]:
    """Return the session of a resolved run, and the machine's decisions with reasons.

    With several ranks, rank 0 decides for all by its share of a step. The model is then on the meta device, and
    `first_weights` returns its values. The steps of a time budget remain "auto".

    Raises:
        UserError: the text is too short, the weights of `init.from` do not fit, or memory is too small.
    """
    batches = make_batches(run, material)
    decisions = decide(run.machine)
    share_threads(decisions.machine.threads, layout)
    model = make_model(run, material, decisions.machine, layout, with_values=layout.size == 1)
    if run.init.from_:
        _take_weights(model, weights_file(Path(run.init.from_)), progress)
    check_stream(decisions.machine, model)
    decide_kernel(decisions, model, run)
    decide_scan(decisions, model)
    decide_loss(decisions, model, run, layout)
    run = resolved(run.model_copy(update={"machine": decisions.machine}), model)
    if layout.size == 1:
        session = Session(run, model, batches)
        _decide_compile(decisions, session)
        _decide_fused(decisions, session)
    else:
        session = Session(run, model, batches, OneOf(layout))
        if decisions.machine.compile == "auto" and decisions.machine.device == "cuda":
            decisions.decide("compile", *compile_for_cuda(session))
        for key in ("compile", "fused"):  # trials of one process cannot measure several
            if getattr(decisions.machine, key) == "auto":
                decisions.decide(key, "none", f"not tried where {layout.size} processes train")
    if run.machine.num_steps == "auto" and not run.budget.seconds:
        decisions.decide("num_steps", budget_steps(session), f"budget of {run.budget}")
    axes = {name: getattr(layout, name) for name in (*AXES, "expert", "sequence")}
    scale = ScaleSpec(
        **axes,
        pipeline_schedule=layout.schedule,
        param_dtype=layout.with_precision(decisions.machine.precision).param_dtype,
        reshard=layout.reshard,
    )
    run = run.model_copy(update={"machine": decisions.machine, "scale": scale})
    num_steps = decisions.machine.num_steps
    session.run = run if num_steps == "auto" else with_steps(run, num_steps)
    return session, decisions


def _decide_compile(decisions: Decisions, session: Session) -> None:
    """Compile layers and head if the run requires it, on a GPU, or if a trial of a long run is faster."""
    wanted = decisions.machine.compile
    if wanted != "auto":
        whole_loss = decisions.machine.loss == "whole"
        decisions.decide("compile", *compile_parts(session.model, wanted, whole_loss=whole_loss))
    elif decisions.machine.device == "cuda":
        decisions.decide("compile", *compile_for_cuda(session))
    elif _at_least_seconds(session, decisions) >= LONG:
        decisions.decide("compile", *compile_if_faster(session))
    else:
        decisions.decide("compile", "none", NOT_TRIED)


def _decide_fused(decisions: Decisions, session: Session) -> None:
    """Use fused kernels if the run requires them, or a trial of a long run is faster."""
    machine = decisions.machine
    if machine.fused == "liger":
        decisions.decide("fused", *fuse(session.model, machine))
    elif machine.fused == "auto" and (missing := why_not_fusable(machine.device)):
        decisions.decide("fused", "none", f"liger's kernels need {missing}")
    elif machine.fused == "auto" and _at_least_seconds(session, decisions) >= LONG:
        decisions.decide("fused", *fuse_if_faster(session, machine))
    elif machine.fused == "auto":
        decisions.decide("fused", "none", NOT_TRIED)


def _at_least_seconds(session: Session, decisions: Decisions) -> float:
    """Return the seconds of the budget, or of its steps at the peak FLOP/s."""
    run, steps = session.run, session.run.machine.num_steps
    if steps == "auto":
        if run.budget.seconds:
            return run.budget.seconds
        steps = budget_steps(session)
    flops = run_flops_per_token(run, session.model, session.batches.lengths)
    return decisions.least_seconds(float(steps) * run.tokens_per_step * flops)


def resolved_session(
    folder: RunFolder,
    material: Material,
    processes: Processes = ALONE,
    session_type: type[Session] = Session,
) -> tuple[Session, Decisions]:
    """Return the session of a resolved run; nothing is decided or measured.

    A rank of several has memory for its shards, without values: `Session.initialise` sets them.
    """
    run, layout = folder.spec, processes.layout
    decisions = decided(run.machine, folder.environment())
    share_threads(run.machine.threads, layout)
    model = make_model(run, material, run.machine, layout, with_values=layout.size == 1)
    model.use_kernel(run.machine.kernel)
    use_scan(model, run.machine.scan)
    compiled = "none" if run.machine.compile == "auto" else run.machine.compile
    whole_loss = run.machine.loss == "whole"
    compile_parts(model, compiled, whole_loss=whole_loss, device=run.machine.device)
    if run.machine.fused == "liger":
        fuse(model, run.machine)
    processes.cut(model)
    return session_type(run, model, make_batches(run, material), processes), decisions


def make_model(
    run: RunSpec,
    material: Material,
    machine: MachineSpec,
    layout: Layout = ONE,
    *,
    with_values: bool = True,
) -> Decoder:
    """Return the run's model with initial weights, or on the meta device.

    Raises:
        UserError: the tokenizer exceeds the vocabulary, or memory is too small.
    """
    num_tokens = material.tokenizer.vocab_size
    vocab_size = run.model.vocab_size
    if vocab_size != "auto" and vocab_size < num_tokens:
        raise UserError(
            f"model.vocab_size: found {vocab_size}; expected at least {num_tokens}, the size of "
            'the tokenizer, or "auto"'
        )
    check_memory(run, num_tokens, machine, layout)
    device = machine.device if with_values else "meta"
    model = build(run.model, seed=run.seed, device=device, vocab_size=num_tokens)
    for stack in model.stacks:
        stack.narrow_stream = machine.stream == "autocast"
    return model.checkpoint_activations(machine.activation_checkpointing)


def check_memory(run: RunSpec, num_tokens: int, machine: MachineSpec, layout: Layout = ONE) -> None:
    """Warn if a step may not fit into the free memory.

    Raises:
        UserError: a step exceeds the machine's memory.
    """
    model = build(run.model, device="meta", vocab_size=num_tokens)
    whole_logits = machine.loss == "whole"
    needed = least_memory(model, layout.part_rows(run), whole_logits=whole_logits)
    total = total_memory(machine.device)
    kept, here = needed.model, "this machine has"
    if layout.size > 1:
        parts = layout.num_shards * layout.tensor * layout.pipeline
        kept, here = kept // parts, "each process has"
        if machine.device == "cpu":
            total //= layout.local
    if kept > total:
        raise UserError(
            f"model: {model.num_parameters():,} parameters, their gradients and moments need "
            f"{size(kept)}, {here} {size(total)}; lower model.dim or "
            "model.num_layers, or scale the model down with --tiny"
        )
    least = kept + (needed.total - needed.model) // layout.context
    if least > total:
        raise UserError(
            f"batch_size: a step needs at least {size(least)}, {here} "
            f"{size(total)}; lower batch_size or model.context_length, or raise grad_accum_steps"
            f"{', or scale the model down with --tiny' * (kept > 1e9)}"
        )
    free = free_memory(machine.device)
    # No estimate for small models, because it is slow.
    if (
        layout.size == 1
        and 4 * least > free
        and (memory := step_memory(run, model, machine)) > free
    ):
        warnings.warn(
            f"a step takes about {size(memory)}, {size(free)} are free: the system may end this run; lower batch_size, "
            "model.context_length or model.dim, or scale the model down with --tiny",
            stacklevel=2,
        )


def step_memory(run: RunSpec, model: Decoder, machine: MachineSpec) -> float:
    """Return the estimated bytes of a training step of one process; the model may be on the meta device."""
    rows, whole = -(-run.batch_size // run.grad_accum_steps), machine.loss == "whole"
    again, narrow = machine.activation_checkpointing, machine.precision != "fp32"
    return split_one(run, model, again, rows, whole_logits=whole, narrow=narrow)


def make_batches(run: RunSpec, material: Material) -> BatchSource:
    """Return the run's batches."""
    if isinstance(material.train, TaskText):
        return TaskBatches(material.train, run.batch_size, run.seed)
    examples = Examples(run.objective, Vocabulary.of(material.tokenizer))
    if isinstance(material.train, PairText):
        return PairBatches(material.train, examples, run.batch_size, run.seed)
    return Batches(
        material.train,
        run.model.context_length,
        run.batch_size,
        run.seed,
        run.data.packing,
        examples=examples,
    )


def resolved(run: RunSpec, model: Decoder) -> RunSpec:
    """Return the run with the values that follow from others."""
    update: dict[str, Any] = {
        "model": model.spec,
        "data": run.data.model_copy(update={"task": settled_task(run.data.task, model.spec)}),
        "optimizer": run.optimizer.with_lrs_resolved(),
    }
    if run.evaluate.stride == "auto":
        stride = run.objective.stride(run.model.context_length)
        update["evaluate"] = run.evaluate.model_copy(update={"stride": stride})
    return run.model_copy(update=update)


def with_steps(run: RunSpec, num_steps: int) -> RunSpec:
    """Return the run with a number of steps, and the values that follow from it."""
    every = run.evaluate.every or max(1, num_steps // EVALUATIONS)
    warmup = warmup_steps(run.schedule, num_steps)
    return run.model_copy(
        update={
            "machine": run.machine.model_copy(update={"num_steps": num_steps}),
            "evaluate": run.evaluate.model_copy(update={"every": every}),
            "schedule": run.schedule.model_copy(update={"warmup": warmup}),
        }
    )


def budget_steps(session: Session) -> int:
    """Return the steps of a budget that is not a time."""
    run, parameters = session.run, session.model.num_parameters()
    flops = run_flops_per_token(run, session.model, session.batches.lengths)
    return run.budget.steps(run.tokens_per_step, flops, num_parameters=parameters)


def weights_file(source: Path) -> Path:
    """Return the weights file of `init.from`.

    Raises:
        UserError: there is no such file.
    """
    if not source.is_dir():
        raise UserError(
            f"init.from: {source} is no folder; expected a run folder or one with model.safetensors"
        )
    file = source / "model.safetensors"
    if not file.is_file():
        saved = checkpoint.latest(source / "checkpoints")
        if saved is None:
            raise UserError(f"init.from: {source} holds no model.safetensors and no checkpoint")
        file = saved / "model.safetensors"
    return file


def first_weights(run: RunSpec, model: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a run with `init.from`, by name: from its file, or else initial values.

    Each is read or drawn on access. The model is on the meta device.
    """
    opened = checkpoint.Opened(weights_file(Path(run.init.from_)))
    taken = checkpoint.weights.sources(model, opened)
    for name, source in taken.items():
        yield name, opened[source]
    others = {name for name, _ in (*model.named_parameters(), *model.named_buffers())} - {*taken}
    yield from initial_values(model, run.seed, device=run.machine.device, names=others)


def _take_weights(model: Decoder, file: Path, progress: Progress) -> None:
    """Load the weights of `init.from`, and print the loaded and the new tensors."""
    taken, new = checkpoint.take_weights(model, checkpoint.Opened(file))
    progress.say(f"init.from {file}: {len(taken)} tensors taken, {len(new)} new")
    for word, names in (("taken", taken), ("new  ", new)):
        for name in names:
            progress.say(f"  {word}  {name}")
