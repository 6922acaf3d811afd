"""Training: from a spec to a finished run folder."""

import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from signal import Signals
from typing import Any

from archwright.machine.decide import Decisions, check_machine, decided, environment
from archwright.machine.out_of_memory import explain_out_of_memory
from archwright.planning.cost import run_flops_per_token
from archwright.reporting.loggers import check_installed
from archwright.runs import RUNS, RunFolder
from archwright.runs.load import OpenRun, open_run
from archwright.scale.checks import check_layout
from archwright.scale.launch import EndedError, LostError, end_with_torchrun, is_first, launched
from archwright.scale.layout import ONE, Layout, kept_layout, layout_of
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load_run
from archwright.spec.run_rules import enforce_run
from archwright.spec.run_spec import RunSpec
from archwright.training import ranks
from archwright.training.callbacks import Callback, Callbacks
from archwright.training.data import Material, prepare_data, reload_data
from archwright.training.finalize import finish, report
from archwright.training.loop import DivergedError
from archwright.training.program import Finalizer, Program
from archwright.training.program import Stopped as Stopped
from archwright.training.progress import Progress, speaker
from archwright.training.resolve import first_weights, resolve, resolved_session, weights_file
from archwright.training.session import Session


def train(
    run: RunSpec | ModelSpec | str | Path,
    *assignments: str | Mapping[str, Any],
    out: str | Path | None = None,
    quiet: bool = False,
    verbose: bool = False,
    on_step: Callback | None = None,
    on_evaluation: Callback | None = None,
    **values: Any,
) -> OpenRun:
    """Train a run, a recipe or the default run of a model, and return it finished.

    A stopped run is resumed if its folder holds the same run. A finished run is returned.

        run = archwright.train("modern", "data.text=notes.txt", "budget=60s")

    Args:
        assignments: dotted overrides, as text or as dicts such as `{"model.dim": 64}`.
        out: run folder; default: runs/NAME.
        quiet: show no progress.
        verbose: print the reasons for the machine's settings, as on the page.
        on_step: function called with the record of each step, a dict with the keys of metrics.jsonl. It changes no
            number of the run. If it raises StopTraining, the run ends and is finished. After any other exception,
            the run is saved, can be resumed, and the exception is raised again.
        on_evaluation: the same for each evaluation on held-out text.
        values: overrides of keys without dots: `dim=64`.

    Raises:
        UserError: mistakes in the run, its text, or its folder, one line each.
        DivergedError: the loss is not finite.
        Stopped: Ctrl-C or SIGTERM; the run is saved.
    """
    since, callbacks = time.perf_counter(), Callbacks(on_step, on_evaluation)

    def lead() -> RunFolder:
        spec = load_run(run).override(*assignments, **values)
        enforce_run(spec)
        check_layout(spec, layout := layout_of(spec.scale, launched()))
        folder = RunFolder.create(Path(out) if out else RUNS / (spec.name or "run"), spec)
        complete(folder, callbacks, quiet=quiet, verbose=verbose, since=since, layout=layout)
        return folder

    return _on_all_ranks(lead, callbacks)


def resume(
    folder: RunFolder | str | Path,
    *,
    quiet: bool = False,
    verbose: bool = False,
    on_step: Callback | None = None,
    on_evaluation: Callback | None = None,
) -> OpenRun:
    """Resume the run in a folder, and return it finished.

    Args:
        quiet: as in `train`.
        verbose: as in `train`.
        on_step: as in `train`.
        on_evaluation: as in `train`.

    Raises:
        UserError: the folder has no run, another process trains it, or its text has changed.
        DivergedError: the loss is not finite.
        Stopped: Ctrl-C or SIGTERM; the run is saved.
    """
    callbacks = Callbacks(on_step, on_evaluation)

    def lead() -> RunFolder:
        opened = folder if isinstance(folder, RunFolder) else RunFolder.open(folder)
        complete(opened, callbacks, quiet=quiet, verbose=verbose)
        return opened

    return _on_all_ranks(lead, callbacks)


def _on_all_ranks(lead: Callable[[], RunFolder], callbacks: Callbacks) -> OpenRun:
    """Call `lead` on rank 0, follow on others, and return the finished run.

    Every rank raises the exception that ends a run, so that a script may catch it and train the next run. If the
    processes cannot train another run, they exit.
    """
    try:
        if is_first():
            with ranks.leading():
                folder = lead()
        else:
            folder = follow(callbacks)
    except Exception as error:
        if ranks.is_stuck():
            raise SystemExit(_last_words(error)) from error
        if isinstance(error, EndedError):
            raise _as_raised_first(error) from None
        raise
    return open_run(folder.path)


def follow(callbacks: Callbacks | None = None) -> RunFolder:
    """Train the run that rank 0 begins, and return its folder; for all other ranks.

    Raises:
        UserError, LostError, EndedError: as `ranks.follow`.
    """

    def program(session: Session, folder: RunFolder, material: Material) -> None:
        Program(folder, material, session, callbacks, quiet=True).run(finish)

    return ranks.follow(program)


def _last_words(error: Exception) -> str | int:
    """Return the exit message; only one rank reports a shared reason."""
    if isinstance(error, (EndedError, LostError)) and not error.is_first:
        return 1
    what = error.lines[0] if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return f"archwright: {what}; after that these processes cannot train another run, so all end"


def _as_raised_first(end: EndedError) -> BaseException:
    """Return an exception of the class that another rank raised; RuntimeError for unknown classes."""
    text = str(end)
    if "Exception" not in end.kinds:  # such as KeyboardInterrupt, which scripts do not catch
        return SystemExit(1)
    if end.signal is not None:
        return Stopped(text, Signals(end.signal))
    if UserError.__name__ in end.kinds:
        return UserError(text)
    return DivergedError(text) if DivergedError.__name__ in end.kinds else RuntimeError(text)


def complete(
    folder: RunFolder,
    callbacks: Callbacks | None = None,
    *,
    quiet: bool = False,
    verbose: bool = False,
    since: float | None = None,
    layout: Layout | None = None,
) -> None:
    """Train the rest of the run in a folder, like `resume`; for a single process or rank 0.

    Args:
        since: start of a new run's time budget, by time.perf_counter; default: now.
        layout: layout of the ranks; default: that of the run's start, or if the number of ranks differs, sharded
            over all.

    Raises:
        UserError, DivergedError, Stopped: as `resume`.
    """
    since = time.perf_counter() if since is None else since
    if layout is None:
        check_layout(folder.spec, layout := kept_layout(folder.spec.scale, launched()))
    end_with_torchrun()
    if not folder.finished:
        train_in(
            folder, finish, callbacks, quiet=quiet, verbose=verbose, since=since, layout=layout
        )
        return
    ranks.dismiss(folder)
    if folder.holder_file.exists():  # the process was killed after the last record
        with contextlib.suppress(UserError), folder.lock():
            folder.sweep()
    folder.sweep(folder.report_file)
    if not folder.report_file.exists():
        report(folder)


def train_in(
    folder: RunFolder,
    ending: Finalizer,
    callbacks: Callbacks | None = None,
    *,
    quiet: bool = False,
    verbose: bool = False,
    since: float | None = None,
    layout: Layout = ONE,
) -> None:
    """Train the rest of the run in a folder, and call `ending`.

    Raises:
        UserError, DivergedError, Stopped: as `resume`; and exceptions of callbacks.
    """
    since = time.perf_counter() if since is None else since
    with ExitStack() as stack:
        stack.enter_context(folder.lock())
        stack.enter_context(explain_out_of_memory())
        material, session, decisions = _begin(folder, speaker(quiet), layout)
        if layout.size > 1:
            device = folder.spec.machine.device
            session = stack.enter_context(ranks.sharded(folder, material, layout, device))
        assert session is not None
        number = layout.size if session.device.type == "cuda" else layout.num_machines
        training = Program(folder, material, session, callbacks, quiet=quiet, verbose=verbose)
        training.run(ending, since, decisions.peak and number * decisions.peak)


def _begin(
    folder: RunFolder, say: Progress, layout: Layout
) -> tuple[Material, Session | None, Decisions]:
    """Return material, session and decisions of a run; resolve and record a new one.

    The session is None if several ranks resume a run.
    """
    if folder.resolved:
        check_installed(folder.spec.loggers)
        material = reload_data(folder.spec, folder)
        if layout.size > 1:
            return material, None, decided(folder.spec.machine, folder.environment())
        return material, *resolved_session(folder, material)
    with folder.removed_unless_started():
        run = folder.spec
        check_installed(run.loggers)
        check_machine(run.machine)
        if run.init.from_:
            weights_file(Path(run.init.from_))
        material = prepare_data(run, folder)
        session, decisions = resolve(run, material, say, layout)
        _record(folder, session, decisions, material)
    return material, session, decisions


def _record(folder: RunFolder, session: Session, decisions: Decisions, material: Material) -> None:
    """Write the resolved run; the environment is last, because it marks the run as resolved."""
    model = session.model
    folder.write_spec(session.run)
    if session.run.init.from_:  # the source of the weights may change
        several = session.processes.layout.size > 1
        values = first_weights(session.run, model) if several else None
        session.save(folder.checkpoints_folder, values)
    folder.write_environment(
        environment(decisions)
        | {
            "num_parameters": model.num_parameters(),
            "flops_per_token": run_flops_per_token(session.run, model, session.batches.lengths),
            "data": material.record(),
        }
    )
