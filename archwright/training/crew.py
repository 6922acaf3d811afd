"""Several processes train one run: the first runs the loop and orders, the others do what it says.

All that depends on clocks, files and signals is decided in the first process, which alone writes and prints. Its
session has the whole model beside what it holds of the one that is trained, so that a checkpoint, the weights and a
sample are made as one process makes them.
"""

import contextlib
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from archwright import checkpoint
from archwright.runs import RunFolder
from archwright.scale.launch import LostError, launched
from archwright.scale.layout import Layout
from archwright.spec.errors import UserError
from archwright.training.data import Material, reload_data
from archwright.training.evaluation import Evaluation, Reading
from archwright.training.resolve import resolved_session
from archwright.training.session import Session
from archwright.training.step import StepResult

if TYPE_CHECKING:
    from archwright.scale.group import Group, Order

State = dict[str, Any]
"""What an optimizer keeps of a parameter."""


class Member:
    """What each process does when the first one says so; all do it at the same time."""

    def __init__(self, group: "Group", session: Session, material: Material) -> None:
        self.group, self.session, self.material = group, session, material

    @classmethod
    def of(cls, group: "Group", folder: RunFolder, material: Material) -> "Member":
        """Return what this process is to a run that is settled."""
        with group.together():
            return cls(group, resolved_session(folder, material, group)[0], material)

    def obey(self, order: "Order", whole: Session | None = None) -> Any:
        """Do what an order says; `whole` is the session of the first process that has the whole model.

        Raises:
            LostError: another process has ended, or does not answer.
        """
        with self.group.together():
            match order["do"]:
                case "step":
                    return self.session.make_step(order["step"], order["lr_scale"])
                case "evaluate":
                    return self.session.evaluate(self.material, Reading(*order["reading"]))
                case "collect":
                    self._collect(whole, moments=order["moments"])
                case "spread":
                    self._spread(whole, order["moments"])
        return None

    @torch.no_grad()
    def _collect(self, whole: Session | None, *, moments: bool) -> None:
        """Gather the model, tensor by tensor, and where asked for what optimizers keep, into a whole session."""
        shards = self.group.shards
        into = _tensors(whole.model) if whole else {}
        for name, value in shards.whole_tensors():
            if whole:
                into[name].copy_(value)
        for name, optimizer in self.session.optimizers.items() if moments else ():
            states = [
                {
                    key: _copied(shards.whole(p, value) if _is_cut(value) else value)
                    for key, value in optimizer.state.get(p, {}).items()
                }
                for p in _parameters(optimizer)
            ]
            if whole:
                _set_state(whole.optimizers[name], states)
                groups = zip(
                    optimizer.param_groups, whole.optimizers[name].param_groups, strict=True
                )
                for own, other in groups:
                    other.update({key: value for key, value in own.items() if key != "params"})

    @torch.no_grad()
    def _spread(self, whole: Session | None, moments: dict[str, list[State]] | None) -> None:
        """Take this process's part of the first one's model, and where given of what its optimizers keep."""
        shards = self.group.shards
        given = _tensors(whole.model) if whole else {}
        for name, tensor in shards.tensors.items():
            shards.put(name, self._sent(given.get(name), shards.shape_of(name), tensor.dtype))
        for name, described in (moments or {}).items():
            parameters = _parameters(self.session.optimizers[name])
            kept: list[State] = [{} for _ in parameters]
            if whole:
                kept = _states(whole.optimizers[name])
            states = [
                {key: self._part(p, state.get(key), about) for key, about in asked.items()}
                for p, state, asked in zip(parameters, kept, described, strict=True)
            ]
            _set_state(self.session.optimizers[name], states)

    def _part(self, parameter: Tensor, value: Any, about: State) -> Any:
        """Return this process's part of what the first one keeps of a parameter."""
        if "dtype" not in about:
            return about["value"]
        sent = self._sent(value, about["value"], getattr(torch, about["dtype"]))
        if not _is_cut(sent):
            return sent
        return torch.empty_like(parameter, dtype=sent.dtype).copy_(
            self.group.shards.own(parameter, sent)
        )

    def _sent(
        self, value: Tensor | None, shape: torch.Size | list[int], dtype: torch.dtype
    ) -> Tensor:
        """Return a tensor that the first process gives."""
        device = self.group.device
        if value is None:
            value = torch.empty(shape, dtype=dtype, device=device)
        value = value.detach().to(device).contiguous()
        self.group.broadcast(value)
        return value


class Conductor(Session):
    """The first process's session: its model is whole, and steps are made by all processes."""

    def __init__(self, session: Session, member: Member) -> None:
        super().__init__(session.run, session.model, session.batches)
        self.member = member

    def make_step(self, step: int, lr_scale: float) -> StepResult:
        result: StepResult = self._order({"do": "step", "step": step, "lr_scale": lr_scale})
        return result

    def evaluate(self, material: Material, reading: Reading) -> Evaluation:
        found: Evaluation = self._order({"do": "evaluate", "reading": [*reading]})
        return found

    def collect(self) -> None:
        self._order({"do": "collect", "moments": False})

    def spread(self) -> None:
        self._order({"do": "spread", "moments": None})

    def _taken(self, *, copies: bool) -> checkpoint.Snapshot:
        self._order({"do": "collect", "moments": True})
        snapshot = super()._taken(copies=True)
        self._forget_moments()
        return snapshot

    def restore(self, path: Path) -> None:
        super().restore(path)
        described = {
            name: [
                {key: _described(value) for key, value in state.items()}
                for state in _states(optimizer)
            ]
            for name, optimizer in self.optimizers.items()
        }
        self._order({"do": "spread", "moments": described})
        self._forget_moments()

    def _forget_moments(self) -> None:
        """Let go of what the processes have in parts, until the next checkpoint."""
        for optimizer in self.optimizers.values():
            optimizer.state.clear()

    def _order(self, order: "Order") -> Any:
        self.member.group.order(order)
        return self.member.obey(order, self)


@contextlib.contextmanager
def crew(
    session: Session, folder: RunFolder, material: Material, layout: Layout
) -> Iterator[Session]:
    """Yield what trains a session: itself, or where several processes were started, all of these.

    Raises:
        LostError: another process has ended, or does not answer.
    """
    launch = launched()
    if launch is None:
        yield session
        return
    from archwright.scale.group import LEAVE, Group

    group = Group(launch)
    device = session.run.machine.device
    path = str(folder.path.resolve())
    group.begin({"do": "train", "folder": path, "device": device, "layout": [*layout]})
    session.model.to("cpu")
    try:
        yield Conductor(session, Member.of(group, folder, material))
    except BaseException:
        if group.busy:  # the others hear no order now; they see that this process ends
            group.is_first_to_report()
        else:
            group.order({"do": LEAVE, "code": 1})
            group.leave()
        raise
    group.order({"do": LEAVE, "code": 0})
    group.leave()


def dismiss(folder: RunFolder) -> None:
    """Tell the other processes, if there are any, that there is nothing to do."""
    if (launch := launched()) is not None:
        from archwright.scale.group import LEAVE, Group

        Group(launch).begin({"do": LEAVE, "folder": str(folder.path.resolve()), "code": 0})


def follow() -> RunFolder:
    """Do what the first process says until it parts; return the folder of the run.

    Raises:
        UserError: what this process alone met, with its number.
        LostError: another process has ended, or does not answer.
        SystemExit: the first process ended without finishing the run, and said so.
    """
    from archwright.scale.group import LEAVE, Group

    launch = launched()
    assert launch is not None, "one process alone follows nobody"
    group = Group(launch)
    begin = order = group.wait_to_begin()
    with warnings.catch_warnings(), _undisturbed():
        warnings.simplefilter("ignore")  # the first process has warned
        try:
            if order["do"] != LEAVE:
                folder = RunFolder.open(begin["folder"])
                member = Member.of(group, folder, reload_data(folder.spec, folder))
            while order["do"] != LEAVE:
                order = group.next_order()
                member.obey(order)
        except LostError:
            raise
        except UserError as error:
            group.is_first_to_report()
            who = f"process {launch.rank} of {launch.size}"
            raise UserError(*(f"{who}: {line}" for line in error.lines)) from error
        except BaseException:
            group.is_first_to_report()
            raise
        group.leave()
    if order["code"]:
        raise SystemExit(order["code"])
    return RunFolder(begin["folder"])


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Leave Ctrl-C and SIGTERM, which all processes get, to the first."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _states(optimizer: torch.optim.Optimizer) -> list[State]:
    """Return what an optimizer keeps of each parameter."""
    return [dict(optimizer.state.get(p, {})) for p in _parameters(optimizer)]


def _set_state(optimizer: torch.optim.Optimizer, states: list[State]) -> None:
    optimizer.state.clear()
    for parameter, state in zip(_parameters(optimizer), states, strict=True):
        if state:
            optimizer.state[parameter] = state


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a model by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _is_cut(value: object) -> bool:
    """Tell whether processes hold parts of what an optimizer keeps: not of numbers, such as that of the steps."""
    return isinstance(value, Tensor) and value.ndim > 0


def _copied(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value


def _described(value: Any) -> State:
    """Return what others must know of a value: its shape and dtype, or of what is no tensor itself."""
    if not isinstance(value, Tensor):
        return {"value": value}
    return {"value": [*value.shape], "dtype": str(value.dtype).removeprefix("torch.")}
