"""Training with several ranks: sharded sessions, and how ranks join and leave a run.

Every rank runs the same loop. Rank 0 alone reads clocks and signals, calls callbacks, prints, and writes files, and
shares the results by `Group.first`. The exception are checkpoints: each rank writes its shards.

No rank holds the whole model. Each rank draws some of the initial weights, and all keep their shards, tensor by tensor.
The file of the weights is written from tensors that are gathered one by one.
"""

import contextlib
import signal
import threading
import time
import warnings
from collections.abc import Callable, Container, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from archwright import checkpoint
from archwright.machine.out_of_memory import explain_out_of_memory
from archwright.model.build import build, build_uninitialized, initial_draws
from archwright.model.model import Decoder
from archwright.optim import build_optimizers
from archwright.parts.mixers.recurrent import use_scan
from archwright.runs import RunFolder
from archwright.scale.launch import EndedError, end_with_torchrun, launched
from archwright.scale.layout import Layout
from archwright.spec.errors import UserError
from archwright.training.data import Material, reload_data
from archwright.training.loop import DivergedError
from archwright.training.resolve import resolved_session
from archwright.training.session import Session
from archwright.training.step import StepResult

if TYPE_CHECKING:
    from archwright.scale.group import Group

LOOK_SECONDS = 0.02
"""Time between checks whether all ranks have read the data, or written their shards."""
_READ = "read"
_ENDED_BEFORE = "this run had ended when torchrun started it again, so all end"
"""Reported if torchrun restarts a run that was stopped or diverged, and would end again."""


class ShardedSession(Session):
    """A session whose model and optimizer states are sharded over ranks."""

    processes: "Group"
    _has_values = False
    """True if the weights are initialised or restored."""
    _num_saved = 0
    """Number of started checkpoints."""

    @cached_property
    def whole(self) -> Decoder:
        return build(self.run.model, seed=self.run.seed, device="meta")

    def make_step(self, step: int, lr_scale: float) -> StepResult:
        if not self.processes.is_first and self._saving and self._saving.done():
            # Without this rank's report, rank 0 would wait for its shards to the end of the run.
            self._saving.result()
        return super().make_step(step, lr_scale)

    def initialise(self) -> None:
        if not self._has_values:
            self._draw()
            self.begin()
            self._has_values = True

    def _draw(self, known: Container[str] = ()) -> None:
        """Set this rank's shards to the initial values, except tensors in `known`; each rank draws some tensors."""
        group = self.processes
        draws = initial_draws(self.whole, self.run.seed, device=group.device)
        needed = ((name, draw) for name, draw in draws if name not in known)
        for name, value in group.drawn(self.whole, needed):
            group.shards.put(name, value)
            del value  # the next tensors are as large

    @contextlib.contextmanager
    def _state_restored(self) -> Iterator[None]:
        self.initialise()
        yield
        self._draw()
        self.begin()

    @torch.no_grad()
    def write_model(self, path: Path, metadata: Mapping[str, str]) -> None:
        group = self.processes
        tensors = group.shards.whole_tensors()  # each is gathered by all ranks
        if not group.is_first:
            for _ in tensors:
                pass
            group.wait_for_first()
            return
        with contextlib.ExitStack() as waiting:

            def gathered() -> Iterator[tuple[str, Tensor]]:
                yield from tensors
                waiting.enter_context(group.others_waiting())

            checkpoint.write_model(path, self.whole, metadata, gathered())

    @torch.no_grad()
    def load_model(self, path: Path) -> None:
        self._take(checkpoint.parts.Stored(path))

    def _take(self, stored: checkpoint.parts.Stored) -> None:
        """Load this rank's shards of stored weights."""
        shards = self.processes.shards
        for name in shards.tensors:
            if name in stored:
                shards.put_own(name, stored.block(name, shards.block(name)))

    @contextlib.contextmanager
    def whole_model(self, path: Path) -> Iterator[Decoder]:
        model = build_uninitialized(self.model.spec).use_kernel(self.run.machine.kernel)
        use_scan(model, self.run.machine.scan)
        checkpoint.load_model(path, model, mapped=True)
        yield model

    def _writer(self, folder: Path) -> Callable[[], object]:
        group, step, keep = self.processes, self.standing.step, self.run.checkpoint.keep
        self._num_saved += 1
        what, self._abandoned = f"saved/{self._num_saved}", threading.Event()
        draft = group.first(lambda: str(checkpoint.steps.begin(folder, step, keep).resolve()))
        snapshot, abandoned = self._snapshot(), self._abandoned

        def write() -> None:
            seals, problems = {}, list[str]()
            try:
                seals = checkpoint.steps.write_part(Path(draft), snapshot)
            except UserError as error:
                problems += error.lines
            except BaseException as error:  # such as a panic of safetensors, which is no Exception
                problems.append(f"{type(error).__name__}: {error}")
            group.report(what, seals, problems)
            if group.is_first:
                seal()

        def seal() -> None:
            try:
                while (reports := group.reports(what)) is None:
                    if abandoned.wait(LOOK_SECONDS):
                        return
            except UserError:
                checkpoint.steps.give_up(folder, step)
                raise
            seals = {name: seal for report in reports for name, seal in report.items()}
            checkpoint.steps.finish(folder, step, seals, keep)

        return write

    def _snapshot(self) -> checkpoint.steps.Snapshot:
        """Return copies of this rank's shards."""
        group = self.processes
        shards = group.shards
        names, metadata = checkpoint.steps.names_of(self.whole)
        optimizers, blocks = {}, {}
        for name, optimizer in self.optimizers.items():
            optimizers[name] = {
                "class": type(optimizer).__name__,
                "parameters": shards.names(optimizer),
                "state_dict": optimizer.state_dict(),
            }
            blocks[name] = [shards.block_of(p) for p in _parameters(optimizer)]
        return checkpoint.steps.take_part(
            self.standing.step,
            (group.launch.rank, group.launch.size),
            tensors={name: (shards.local(name), shards.block(name)) for name in names},
            optimizers=optimizers,
            blocks=blocks,
            metadata=metadata,
            state=self._state() if group.is_first else None,
        )

    def settle(self) -> None:
        saving, self._saving = self._saving, None
        if saving is None:
            return
        if not self.processes.is_first:
            saving.result()
        try:
            self.processes.meet()  # notices ranks that have ended
        except BaseException:
            self._abandoned.set()
            raise
        self.processes.first(saving.result)

    def settle_after_error(self) -> None:
        if self._saving is not None and not self.processes.agreed:
            self._abandoned.set()
            self._saving.exception()
            self._saving = None
        super().settle_after_error()

    @torch.no_grad()
    def restore_latest(self, folder: Path) -> bool:
        path, state = self.processes.first(lambda: self._latest(folder))
        if path is None:
            return False
        shards, (weights, read) = self.processes.shards, checkpoint.steps.parts_of(Path(path))
        self._draw(known={*weights})  # such as tables that follow from the spec
        self._take(weights)
        for name, optimizer in self.optimizers.items():
            parameters = _parameters(optimizer)
            states, groups = read(name, [shards.block_of(p) for p in parameters])
            for group, saved in zip(optimizer.param_groups, groups, strict=True):
                group.update({key: value for key, value in saved.items() if key != "params"})
            optimizer.state.clear()
            for parameter, values in zip(parameters, states, strict=True):
                if values:
                    optimizer.state[parameter] = {
                        key: self._placed(value, parameter) for key, value in values.items()
                    }
        self._set_state(Path(path), state)
        self._has_values = True
        return True

    def _latest(self, folder: Path) -> tuple[str | None, dict[str, Any]]:
        """Return the newest intact checkpoint and its state; restore rank 0's generators."""
        states: dict[str, dict[str, Any]] = {}
        optimizers = build_optimizers(
            self.whole, self.run.optimizer, precision=self.precision.dtype
        )

        def check(path: Path) -> None:
            state = checkpoint.steps.check(path, model=self.whole, optimizers=optimizers)
            self._set_state(path, state)
            states[str(path.resolve())] = state

        path = checkpoint.use_latest(folder, check)
        return next(iter(states.items()), (None, {})) if path else (None, {})

    def _placed(self, value: Any, parameter: Tensor) -> Any:
        """Return an optimizer's value on the device of its parameter, in the same memory format."""
        if not isinstance(value, Tensor):
            return value
        if not value.ndim:
            return value.to(self.processes.device)
        return torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


@contextlib.contextmanager
def sharded(
    folder: RunFolder, material: Material, layout: Layout, device: str
) -> Iterator[Session]:
    """Begin a resolved run on all ranks, and yield the session of rank 0.

    Raises:
        LostError: another rank has died or does not answer.
        EndedError: another rank gave a reason to end, or torchrun restarted a run that had ended for good.
    """
    from archwright.scale.group import LEAVE, Group, check_gpus

    launch = launched()
    assert launch is not None, "a layout of several ranks needs torchrun"
    if device == "cuda":
        check_gpus(launch, torch.cuda.device_count())
    group, path = Group(launch), str(folder.path.resolve())
    end = group.end_before(path)
    group.remember_end(path, end)
    if end is not None:
        group.begin({"do": LEAVE, "error": end})
        raise EndedError(**end, is_first=True)
    with _joined(group, path):
        group.begin({"do": "train", "folder": path, "device": device, "layout": [*layout]})
        group.report(_READ)
        group.first(lambda: _wait_for_readers(group))
        yield resolved_session(folder, material, group, ShardedSession)[0]


def follow(program: Callable[[Session, RunFolder, Material], object]) -> RunFolder:
    """Join the run that rank 0 begins, run a program, and return the run's folder; for all other ranks.

    Raises:
        UserError: a mistake that only this rank noticed, with its number.
        LostError: another rank has died or does not answer.
        EndedError: another rank refused the run, or ended it early.
    """
    from archwright.scale.group import LEAVE, Group

    launch = launched()
    assert launch is not None, "a single process has no rank to follow"
    end_with_torchrun()
    group = Group(launch)
    try:
        with (
            warnings.catch_warnings(),
            _joined(group),
            _signals_shared(group),
            explain_out_of_memory(),
        ):
            warnings.simplefilter("ignore")  # rank 0 has warned
            order = group.wait_to_begin()
            folder = RunFolder(order.get("folder", ""))
            if order["do"] != LEAVE:
                material = _read_meanwhile(folder, group)
                session, _ = resolved_session(folder, material, group, ShardedSession)
                program(session, folder, material)
    except UserError as error:
        who = f"process {launch.rank} of {launch.size}"
        raise UserError(*(f"{who}: {line}" for line in error.lines)) from error
    if "error" in order:
        raise EndedError(**order["error"])
    return folder


@contextlib.contextmanager
def _joined(group: "Group", path: str = "") -> Iterator[None]:
    """Leave the group after the block: in order if all ranks end alike, otherwise at once.

    Args:
        path: run folder; rank 0 remembers that a run was stopped or diverged.
    """
    from archwright.scale.group import described

    try:
        with group.together():
            yield
        group.leave()
    except BaseException as error:
        rank, size = group.launch[:2]
        who = f"process {rank} of {size}" if rank else "the first process"
        end = described(error, f"{who} has ended this run")
        if path and (end["signal"] is not None or isinstance(error, DivergedError)):
            with contextlib.suppress(RuntimeError):  # the store has ended, and so has torchrun
                group.remember_end(path, described(error, _ENDED_BEFORE))
        if group.agreed:
            with contextlib.suppress(RuntimeError, EndedError):
                group.leave()
        group.abandon(end)
        raise


def _wait_for_readers(group: "Group") -> None:
    """Wait until all ranks have read the data; the first rank on a machine may have to verify it."""
    while group.reports(_READ) is None:
        time.sleep(LOOK_SECONDS)


def _read_meanwhile(folder: RunFolder, group: "Group") -> Material:
    """Read the data of a run in a thread while this rank waits for rank 0."""
    materials: list[Material] = []

    def read() -> None:
        problems = list[str]()
        try:
            materials.append(reload_data(folder.spec, folder))
        except UserError as error:
            problems += error.lines
        except BaseException as error:
            problems.append(f"{type(error).__name__}: {error}")
        with contextlib.suppress(RuntimeError):  # rank 0 has ended
            group.report(_READ, problems=problems)

    # A daemon, because nobody waits for it if another rank has ended.
    threading.Thread(target=read, daemon=True).start()
    group.wait_for_first()
    return materials[0]


@contextlib.contextmanager
def _signals_shared(group: "Group") -> Iterator[None]:
    """Ignore Ctrl-C, which rank 0 handles, and share SIGTERM with all ranks.

    A machine that is drained sends SIGTERM to its own ranks only. Outside the main thread, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        group.stop_asked = True

    handlers: dict[signal.Signals, Any] = {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: ask}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def leading() -> Iterator[None]:
    """Report exceptions before a run begins to the other ranks, which wait for it.

    Otherwise, a script that catches the exception and trains another run would confuse the two.
    """
    launch = launched()
    if launch is None:
        yield
        return
    from archwright.scale.group import LEAVE, Group, described

    before = Group.number
    try:
        yield
    except Exception as error:  # after any other, rank 0 ends, and torchrun ends the others
        if Group.number == before:
            end = described(error, "the first process has refused this run")
            Group(launch).begin({"do": LEAVE, "error": end})
        raise


def dismiss(folder: RunFolder) -> None:
    """Release the other ranks from a run that is finished already."""
    if (launch := launched()) is not None:
        from archwright.scale.group import LEAVE, Group

        Group(launch).begin({"do": LEAVE, "folder": str(folder.path.resolve())})


def is_stuck() -> bool:
    """True if a run failed so that these processes cannot train another one."""
    if launched() is None:
        return False
    from archwright.scale.group import Group

    return Group.is_stuck
