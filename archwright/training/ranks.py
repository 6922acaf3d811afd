"""Several processes train one run: the first runs the loop and orders, the others do what it says.

All that depends on clocks, files and signals is decided in the first process, which alone prints and writes, but for
checkpoints, of which each writes what it holds. No process holds the whole model: each draws some initial values, of
which all keep their parts, tensor by tensor, and reads its part of a checkpoint; the file of the weights is written of
tensors that are gathered one by one, and a sample is computed with that file, mapped.
"""

import contextlib
import signal
import threading
import time
import warnings
from collections.abc import Callable, Container, Generator, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from archwright import checkpoint
from archwright.inspection.probes import STEPS, Probes
from archwright.machine.out_of_memory import explain_out_of_memory
from archwright.model.build import build_uninitialized, initial_draws
from archwright.model.model import Decoder
from archwright.parts.mixers.recurrent import use_scan
from archwright.runs import RunFolder
from archwright.scale.launch import EndedError, LostError, end_with_torchrun, launched
from archwright.scale.layout import Layout
from archwright.spec.errors import UserError
from archwright.training.data import Material, reload_data
from archwright.training.evaluation import Evaluation, Reading
from archwright.training.loop import DivergedError
from archwright.training.resolve import make_model, resolved_session
from archwright.training.session import Session, in_thread
from archwright.training.step import StepResult

if TYPE_CHECKING:
    from archwright.scale.group import Group, Order

LOOK_SECONDS = 0.02
"""Time between looks at whether all processes have read the data, or have written their parts."""
WAIT_SECONDS = 600.0
"""Time after which the first process orders others to go on waiting."""
_ENDED_BEFORE = "this run had ended when torchrun started it again, so all end"
"""What the first process says then: torchrun does that after any end but a good one, also one that would come again."""


class Rank:
    """What each process does when the first one says so; all do it at the same time."""

    def __init__(self, group: "Group", session: Session, material: Material) -> None:
        self.group, self.session, self.material = group, session, material
        self._saving: Future[object] | None = None
        self._probed = contextlib.ExitStack()
        """Ends with a step that probes look at."""

    @classmethod
    def of(cls, group: "Group", folder: RunFolder, material: Material) -> "Rank":
        """Return what this process is to a run that is settled; its part of the model has no values yet."""
        with group.together():
            return cls(group, resolved_session(folder, material, group)[0], material)

    def execute(self, order: "Order", whole: "Rank0Session | None" = None) -> Any:
        """Do what an order says; `whole` is the session of the first process that has the whole model.

        Raises:
            LostError, EndedError: another process has ended, or does not answer; or gave a reason why it ends.
        """
        with self.group.together():
            self._look_after_saving()
            match order["do"]:
                case "step":
                    return self.session.make_step(order["step"], order["lr_scale"])
                case "probe":
                    # All compute with the same probes, as each has weights that others need.
                    probes = self.session.probe(order["step"])
                    self._probed.enter_context(probes.watching(STEPS))
                    return probes
                case "probed":
                    self._probed.close()
                case "evaluate":
                    return self.session.evaluate(self.material, Reading(*order["reading"]))
                case "begin":
                    self._initialise()
                    self.session.begin()
                case "gather":
                    for _ in self.gathered():
                        pass
                case "take":
                    self._take(checkpoint.parts.Stored(Path(order["path"])))
                case "save":
                    self._save(order, whole)
                case "settle":
                    self.settle()
                    self.group.meet()
                case "wait":
                    pass
                case "load":
                    self._load(Path(order["path"]))
        return None

    def _initialise(self, known: Container[str] = ()) -> None:
        """Let this process's part of the model have its initial values, of which each process draws some whole, but for
        tensors that are `known`."""
        run, group = self.session.run, self.group
        model = make_model(run, self.material, run.machine, group.layout, with_values=False)
        draws = initial_draws(model, run.seed, device=group.device)
        wanted = ((name, draw) for name, draw in draws if name not in known)
        for name, value in group.drawn(model, wanted):
            group.shards.put(name, value)
            del value  # the next ones are as large

    @torch.no_grad()
    def gathered(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of the whole model, each gathered when it is asked for; all processes ask alike."""
        yield from self.group.shards.whole_tensors()

    def _take(self, stored: checkpoint.parts.Stored) -> None:
        """Take this process's part of weights, which the first one has found to fit."""
        shards = self.group.shards
        for name in shards.tensors:
            if name in stored:
                shards.put_own(name, stored.block(name, shards.block(name)))

    def _save(self, order: "Order", whole: "Rank0Session | None") -> None:
        """Take copies of what this process holds, and write them while training goes on; the first one hears what
        becomes of it."""
        shards, group = self.group.shards, self.group
        optimizers = {
            name: {
                "class": type(optimizer).__name__,
                "parameters": shards.names(optimizer),
                "state_dict": optimizer.state_dict(),
            }
            for name, optimizer in self.session.optimizers.items()
        }
        snapshot = checkpoint.steps.take_part(
            order["step"],
            (group.launch.rank, group.launch.size),
            tensors={name: (shards.local(name), shards.block(name)) for name in order["names"]},
            optimizers=optimizers,
            blocks={
                name: [shards.block_of(p) for p in _parameters(optimizer)]
                for name, optimizer in self.session.optimizers.items()
            },
            metadata=order["metadata"],
            state=whole.state if whole else None,
        )
        self._saving = in_thread(
            lambda: group.tell(order["word"], _written(Path(order["folder"]), snapshot))
        )

    def settle(self) -> None:
        """Wait until what this process writes of a checkpoint is on the disk, and the first process has heard of it.

        Raises:
            Exception: it cannot hear of it.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def _look_after_saving(self) -> None:
        """Raise what has kept the first process from hearing of a checkpoint: it would wait for that, and save no more,
        to the end of the run."""
        if self._saving is not None and self._saving.done():
            self.settle()

    def wait_for_disk(self) -> None:
        """Wait until nothing is written any more by this process, of whatever nobody waits for."""
        if self._saving is not None:
            self._saving.exception()
            self._saving = None

    @torch.no_grad()
    def _load(self, path: Path) -> None:
        """Take this process's part of a checkpoint, which the first one has found whole."""
        shards, (weights, read) = self.group.shards, checkpoint.steps.parts_of(path)
        self._initialise(known={*weights})  # such as tables that follow from the spec
        self._take(weights)
        for name, optimizer in self.session.optimizers.items():
            parameters = _parameters(optimizer)
            states, groups = read(name, [shards.block_of(p) for p in parameters])
            for group, saved in zip(optimizer.param_groups, groups, strict=True):
                group.update({key: value for key, value in saved.items() if key != "params"})
            optimizer.state.clear()
            for parameter, state in zip(parameters, states, strict=True):
                if state:
                    optimizer.state[parameter] = {
                        key: self._placed(value, parameter) for key, value in state.items()
                    }

    def _placed(self, value: Any, parameter: Tensor) -> Any:
        """Return what an optimizer keeps of a parameter, in that one's place and order in memory."""
        if not isinstance(value, Tensor):
            return value
        if not value.ndim:
            return value.to(self.group.device)
        return torch.empty_like(parameter, dtype=value.dtype).copy_(value)


class Rank0Session(Session):
    """The first process's session: steps are made by all processes, and its model, on the meta device, says what the
    whole one is."""

    def __init__(self, session: Session, rank: Rank) -> None:
        super().__init__(session.run, session.model, session.batches)
        self.rank = rank
        self._has_values = False
        """Whether the model has values, initial ones or those of a checkpoint."""
        self._number = 0
        """How many checkpoints were begun."""
        self._abandoned = threading.Event()
        """Set where nobody waits any more for a checkpoint that is being written."""
        self._turn = threading.Lock()
        """Held while an order is given and done."""
        self._failed: Exception | None = None
        """What the others' waiting ended with."""

    @property
    def stop_asked(self) -> bool:
        return self.rank.group.stop_asked

    def make_step(self, step: int, lr_scale: float) -> StepResult:
        result: StepResult = self._order({"do": "step", "step": step, "lr_scale": lr_scale})
        return result

    @contextlib.contextmanager
    def probing(self) -> Iterator[Probes]:
        yield self._order({"do": "probe", "step": self.standing.step})
        self._order({"do": "probed"})

    def evaluate(self, material: Material, reading: Reading) -> Evaluation:
        found: Evaluation = self._order({"do": "evaluate", "reading": [*reading]})
        return found

    def write_model(self, path: Path, metadata: Mapping[str, str]) -> None:
        # The others have done their part with the last tensor, and wait while what is left is brought to the disk.
        with contextlib.closing(self._gathered()) as tensors:
            checkpoint.write_model(path, self.model, metadata, tensors)

    def _gathered(self) -> Generator[tuple[str, Tensor], None, None]:
        with self._together():
            self.rank.group.order({"do": "gather"})
            yield from self.rank.gathered()

    def initialise(self) -> None:
        if not self._has_values:
            self._order({"do": "begin"})
            self._has_values = True

    @contextlib.contextmanager
    def _state_restored(self) -> Iterator[None]:
        self.initialise()
        yield
        self._order({"do": "begin"})
        self.begin()

    def load_model(self, path: Path) -> None:
        checkpoint.weights.check_model(path, self.model)
        self._order({"do": "take", "path": str(path.resolve())})

    @contextlib.contextmanager
    def whole_model(self, path: Path) -> Iterator[Decoder]:
        is_written = path.exists()
        if not is_written:
            self.write_model(path, {})
        try:
            model = build_uninitialized(self.model.spec).use_kernel(self.run.machine.kernel)
            use_scan(model, self.run.machine.scan)
            checkpoint.load_model(path, model, mapped=True)
            yield model
        finally:
            if not is_written:
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def others_waiting(self) -> Iterator[None]:
        """Let the others wait while the block lasts, however long it has no order for them: this process alone calls
        what the user gave, reads, compresses, and brings files to the disk.

        Raises:
            LostError, EndedError: another process has ended meanwhile.
        """
        over = threading.Event()

        def keep_waiting() -> None:
            try:
                while not over.wait(WAIT_SECONDS):
                    self._order({"do": "wait"})
            except Exception as error:
                self._failed = error

        thread = threading.Thread(target=keep_waiting, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        if self._failed is not None:
            raise self._failed

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Give an order and do it in the block, and no other one meanwhile."""
        with self._turn, self.rank.group.together():
            if self._failed is not None:
                raise self._failed
            yield

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint says of this training beside weights, optimizers and generators."""
        return self._state()

    def _writer(self, folder: Path) -> Callable[[], object]:
        """Let all processes take copies of what they hold; return what waits until they have written them."""
        step, keep = self.standing.step, self.run.checkpoint.keep
        names, metadata = checkpoint.steps.names_of(self.model)
        self._number += 1
        self._abandoned.clear()
        word = f"saved/{self._number}"
        order = {"do": "save", "step": step, "names": names, "metadata": metadata, "word": word}
        self._order(order | {"folder": str(checkpoint.steps.begin(folder, step, keep).resolve())})
        return lambda: self._finish(folder, step, keep, word)

    def _finish(self, folder: Path, step: int, keep: int, word: str) -> None:
        """Let a checkpoint count once all processes have written their parts; as a thread of its own."""
        while (reports := self.rank.group.reports(word)) is None:
            if self._abandoned.wait(LOOK_SECONDS):
                return
        size = len(reports)
        if problems := [
            f"process {rank} of {size}: {line}"
            for rank, report in enumerate(reports)
            for line in report.get("problems", ())
        ]:
            checkpoint.steps.give_up(folder, step)
            raise UserError(*problems)
        seals = {name: seal for report in reports for name, seal in report["seals"].items()}
        checkpoint.steps.finish(folder, step, seals, keep)

    def settle(self) -> None:
        if self._saving is None:
            return
        if not self._saving.done():
            with self._turn:
                has_failed = self.rank.group.busy
            if has_failed:  # another process may have ended, and say nothing any more
                self._abandoned.set()
            else:
                try:
                    self._order({"do": "settle"})
                except BaseException:
                    self._abandoned.set()
                    raise
        super().settle()

    def _load(self, path: Path) -> dict[str, Any]:
        state = checkpoint.steps.check(path, model=self.model, optimizers=self.optimizers)
        self._order({"do": "load", "path": str(path.resolve())})
        self._has_values = True
        return state

    def _order(self, order: "Order") -> Any:
        with self._together():
            self.rank.group.order(order)
            return self.rank.execute(order, self)


@contextlib.contextmanager
def distributed(
    session: Session, folder: RunFolder, material: Material, layout: Layout
) -> Iterator[Session]:
    """Yield what trains a session: itself, or where several processes were started, all of these.

    Raises:
        LostError, EndedError: another process has ended, or does not answer; or gave a reason why it ends; or the run
            ended for good before torchrun started it again.
    """
    launch = launched()
    if launch is None:
        yield session
        return
    from archwright.scale.group import LEAVE, Group, check_gpus

    device = session.run.machine.device
    if device == "cuda":
        check_gpus(launch, torch.cuda.device_count())
    group, rank = Group(launch), None
    path = str(folder.path.resolve())
    end = group.end_before(path)
    group.remember_end(path, end)
    if end is not None:
        group.begin({"do": LEAVE, "error": end})
        raise EndedError(**end, is_first=True)
    try:
        group.begin({"do": "train", "folder": path, "device": device, "layout": [*layout]})
        _wait_for_readers(group)
        rank = Rank.of(group, folder, material)
        whole = Rank0Session(session, rank)
        with explain_out_of_memory(), whole.others_waiting():
            yield whole
        group.order({"do": LEAVE})
        group.leave()
    except BaseException as error:
        _dismiss_after(error, group, path)
        if rank is not None:
            rank.wait_for_disk()
        raise


def _dismiss_after(error: BaseException, group: "Group", path: str) -> None:
    """Let the others end the run as this process does, the first one, which has met an error."""
    from archwright.scale.group import LEAVE

    end = _described(error, "the first process has ended this run")
    if end["signal"] is not None or isinstance(error, DivergedError):
        with contextlib.suppress(RuntimeError):  # the store is gone, and so is torchrun
            group.remember_end(path, _described(error, _ENDED_BEFORE))
    if not group.busy:
        with contextlib.suppress(LostError, EndedError):  # this one goes before that
            group.order({"do": LEAVE, "error": end})
            group.leave()
    group.abandon(end)


@contextlib.contextmanager
def leading() -> Iterator[None]:
    """Tell the other processes, if there are any, where the block raises before they have heard of its run.

    A script may catch the exception and train something else: they would still wait for this run, and take the next one
    for it.
    """
    launch = launched()
    if launch is None:
        yield
        return
    from archwright.scale.group import LEAVE, Group

    before = Group.number
    try:
        yield
    except (
        Exception
    ) as error:  # after any other this process ends, and with it torchrun ends the others
        if Group.number == before:
            end = _described(error, "the first process has refused this run")
            Group(launch).begin({"do": LEAVE, "error": end})
        raise


def _described(error: BaseException, what: str) -> dict[str, Any]:
    """Return what an `EndedError` of other processes is made of."""
    lines = error.lines if isinstance(error, UserError) else str(error).splitlines()
    kinds = [kind.__name__ for kind in type(error).__mro__]
    reason = ": ".join([*kinds[: not isinstance(error, UserError)], *lines[:1]])
    number = vars(error).get("signal")  # of one that was interrupted
    return {
        "text": f"{what}: {reason}",
        "kinds": kinds,
        "signal": int(number) if isinstance(number, signal.Signals) else None,
    }


def dismiss(folder: RunFolder) -> None:
    """Tell the other processes, if there are any, that there is nothing to do."""
    if (launch := launched()) is not None:
        from archwright.scale.group import LEAVE, Group

        Group(launch).begin({"do": LEAVE, "folder": str(folder.path.resolve())})


def is_stuck() -> bool:
    """Tell whether a run has failed so that these processes cannot train together again."""
    if launched() is None:
        return False
    from archwright.scale.group import Group

    return Group.is_stuck


def follow() -> RunFolder:
    """Do what the first process says until it parts; return the folder of the run.

    Raises:
        UserError: what this process alone met, with its number.
        LostError: another process has ended, or does not answer.
        EndedError: another process refused the run, or ended it before it was finished.
    """
    from archwright.scale.group import LEAVE, Group

    launch = launched()
    assert launch is not None, "one process alone follows nobody"
    end_with_torchrun()
    group, rank = Group(launch), None
    try:
        begin = order = group.wait_to_begin()
        with warnings.catch_warnings(), _undisturbed(group), explain_out_of_memory():
            warnings.simplefilter("ignore")  # the first process has warned
            if begin["do"] != LEAVE:
                folder = RunFolder.open(begin["folder"])
                order, reading = _read_beside(folder, group)
                if order["do"] != LEAVE:
                    rank = Rank.of(group, folder, reading.result())
                    while (order := group.next_order())["do"] != LEAVE:
                        rank.execute(order)
                    rank.wait_for_disk()
                group.leave()
    except BaseException as error:
        who = f"process {launch.rank} of {launch.size}"
        group.abandon(_described(error, f"{who} has ended this run"))
        if rank is not None:
            rank.wait_for_disk()
        if isinstance(error, UserError):
            raise UserError(*(f"{who}: {line}" for line in error.lines)) from error
        raise
    if "error" in order:
        raise EndedError(**order["error"])
    return RunFolder(begin["folder"])


def _read_beside(folder: RunFolder, group: "Group") -> tuple["Order", Future[Material]]:
    """Read the data of a run while this process hears orders to wait; return the first other order, and what was read,
    unless that order is to leave."""
    reading = Future[Material]()

    def read() -> None:
        try:
            found = reload_data(folder.spec, folder)
            with contextlib.suppress(RuntimeError):  # the first process has ended
                group.tell(_READ, True)
        except BaseException as error:
            reading.set_exception(error)
        else:
            reading.set_result(found)

    # One that ends with the process: where another has ended, nobody waits for what is read.
    threading.Thread(target=read, daemon=True).start()
    while (order := group.next_order())["do"] == "wait":
        if reading.done():
            reading.result()  # raises at once what reading has raised
    return order, reading


def _wait_for_readers(group: "Group") -> None:
    """Let all processes read the data, however long it takes them; for the first one, which has.

    The first process of a machine that opens a store may have to verify it, which takes longer than processes wait for
    each other where it is large. They do so in an open group: orders to wait find one that has died, while before,
    nothing tells the processes of one machine that those of another have ended.
    """
    group.tell(_READ, True)
    while group.reports(_READ) is None:
        group.order({"do": "wait"})
        time.sleep(LOOK_SECONDS)
    group.order({"do": "go on"})


_READ = "read"
"""What a process tells that has the data."""


@contextlib.contextmanager
def _undisturbed(group: "Group") -> Iterator[None]:
    """Leave Ctrl-C, which all processes get, to the first, and tell that one of SIGTERM, which those of one machine get
    alone where it is drained or taken away; outside the main thread, change nothing."""
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


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _written(folder: Path, snapshot: checkpoint.steps.Snapshot) -> dict[str, Any]:
    """Write a process's part of a checkpoint, and return what the first one hears of it."""
    try:
        return {"seals": checkpoint.steps.write_part(folder, snapshot)}
    except UserError as error:
        return {"problems": error.lines}
    except BaseException as error:  # such as a panic of safetensors, which is no Exception
        return {"problems": [f"{type(error).__name__}: {error}"]}
