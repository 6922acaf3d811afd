"""Sharded sessions: each rank holds shards of the model and of the optimizers' states.

Each rank draws some of the initial weights, and all keep their shards, tensor by tensor. Each rank writes its shards of
a checkpoint. The file of the weights is written from tensors that are gathered one by one.
"""

import contextlib
import threading
from collections.abc import Callable, Container, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from archwright import checkpoint
from archwright.model.build import build, build_uninitialized, initial_draws
from archwright.model.model import Decoder
from archwright.optim import build_optimizers
from archwright.parts.mixers.recurrent import use_scan
from archwright.spec.errors import UserError
from archwright.training.session import Session
from archwright.training.step import StepResult

if TYPE_CHECKING:
    from archwright.scale.group import Group

LOOK_SECONDS = 0.02
"""Time between checks whether all ranks have written their shards."""


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
            if value.numel():
                group.shards.put_own(name, value)

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
