"""Settling a run: every "auto" becomes a value, by rule or by measurement, once and for all."""

from pathlib import Path
from typing import Any

from archwright import checkpoint
from archwright.data.batches import Batches
from archwright.model.build import build
from archwright.model.decoder import Decoder
from archwright.optim import warmup_steps
from archwright.planning.cost import flops_per_token
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.run_spec import Muon, RunSpec, parse_budget
from archwright.training.compiling import compile_layers
from archwright.training.machine import Decisions, decide, decide_kernel
from archwright.training.material import Material
from archwright.training.progress import Progress
from archwright.training.session import Session, steps_for_budget

WARM_SECONDS = 3.0
"""Time for which steps are timed, at most a twentieth of the budget."""


def is_settled(folder: RunFolder) -> bool:
    """Tell whether the folder's spec has only values, so that nothing may be decided again."""
    return bool(folder.environment()) and "auto" not in folder.spec.machine.model_dump().values()


def settle(run: RunSpec, material: Material, progress: Progress) -> tuple[Session, Decisions]:
    """Return a session whose run has only values, and the machine's decisions with their reasons.

    Raises:
        UserError: the text is too short, or weights to start from do not fit.
    """
    decisions = decide(run.machine)
    model = make_model(run, material, decisions)
    if run.init.from_:
        _take_weights(model, Path(run.init.from_), progress)
    decide_kernel(decisions, model, run.batch_size)
    decisions.decide("compile", *compile_layers(model, run.machine.compile))
    run = _resolved(run, model, decisions)
    session = Session(run, model, make_batches(run, material))
    if run.machine.num_steps == "auto":
        decisions.decide("num_steps", *_num_steps(session))
    session.run = _with_steps(run, decisions)
    return session, decisions


def unsettled(run: RunSpec, material: Material) -> tuple[Session, Decisions]:
    """Return the session of a run that was settled before; nothing is decided."""
    decisions = decide(run.machine)
    model = make_model(run, material, decisions)
    model.use_kernel(run.machine.kernel)
    compile_layers(model, run.machine.compile)
    return Session(run, model, make_batches(run, material)), decisions


def make_model(run: RunSpec, material: Material, decisions: Decisions) -> Decoder:
    """Return the run's model with its initial weights."""
    return build(
        run.model,
        seed=run.seed,
        device=decisions.machine.device,
        vocab_size=material.tokenizer.vocab_size,
    )


def make_batches(run: RunSpec, material: Material) -> Batches:
    """Return the run's batches."""
    length = run.model.context_length
    return Batches(material.train, length, run.batch_size, run.seed, run.data.documents)


def _resolved(run: RunSpec, model: Decoder, decisions: Decisions) -> RunSpec:
    """Replace what follows from other values."""
    update: dict[str, Any] = {"model": model.spec, "machine": decisions.machine}
    if isinstance(run.optimizer, Muon) and run.optimizer.adamw_lr == "auto":
        update["optimizer"] = run.optimizer.model_copy(update={"adamw_lr": run.optimizer.lr})
    if run.evaluate.stride == "auto":
        stride = max(1, run.model.context_length // 2)
        update["evaluate"] = run.evaluate.model_copy(update={"stride": stride})
    return run.model_copy(update=update)


def _with_steps(run: RunSpec, decisions: Decisions) -> RunSpec:
    """Replace what follows from the number of steps."""
    num_steps = decisions.machine.num_steps
    assert num_steps != "auto"
    every = run.evaluate.every or max(1, num_steps // 10)
    warmup = warmup_steps(run.schedule, num_steps)
    return run.model_copy(
        update={
            "machine": decisions.machine,
            "evaluate": run.evaluate.model_copy(update={"every": every}),
            "schedule": run.schedule.model_copy(update={"warmup": warmup}),
        }
    )


def _num_steps(session: Session) -> tuple[int, str]:
    """Return how many steps the budget pays for, and how that was found."""
    run = session.run
    amount, unit = parse_budget(run.budget)
    flops = flops_per_token(session.model, run.model.context_length)
    took: list[float] = []

    def timed() -> float:
        took.append(session.time_step(min(WARM_SECONDS, amount / 20)))
        return took[0]

    steps = steps_for_budget(amount, unit, run, flops, timed)
    measured = f" at {1e3 * took[0]:.1f} ms a step" if took else ""
    return steps, f"what a budget of {run.budget} pays for{measured}"


def _take_weights(model: Decoder, source: Path, progress: Progress) -> None:
    """Start from existing weights, and name what is taken and what is new."""
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
    taken, new = checkpoint.take_weights(model, checkpoint.read_model(file))
    progress.say(f"init.from {file}: {len(taken)} tensors taken, {len(new)} new")
    for name in taken:
        progress.say(f"  taken  {name}")
    for name in new:
        progress.say(f"  new    {name}")
