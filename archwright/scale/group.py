"""The process group of a run that torchrun started."""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from archwright.format import duration
from archwright.scale import connections
from archwright.scale.distributed import Distributed
from archwright.scale.launch import EndedError, Launch, LostError, awaited
from archwright.scale.layout import Layout
from archwright.spec.errors import UserError

T = TypeVar("T")
Order = dict[str, Any]
"""How rank 0 begins a run, as JSON."""

START = timedelta(days=7)
"""Longest time in which rank 0 prepares a run, such as reading a large text."""
LOOK_SECONDS = 0.1
"""Time between checks whether all ranks have received the order to begin."""
WAIT_SECONDS = 10.0
"""Time between messages of rank 0 to the ranks that wait for it."""


class Group(Distributed):
    """All ranks of a run."""

    number = 0
    """Number of groups of this process so far, which is the same in all processes."""
    is_stuck = False
    """True if a group failed so that its processes cannot form another: collectives of GPUs cannot be ended."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch)
        self.is_open = False
        self.agreed = False
        """True if every rank has the exception that ends the run, so that the group can be left in order."""
        with awaited(launch):
            store, _, _ = next(rendezvous("env://", timeout=START))
        self._ends = PrefixStore("archwright/ends", store)
        # A script may train twice. Until `begin` and `wait_to_begin`, restarted processes share this prefix with their
        # predecessors; then, each group has its own.
        self._store = PrefixStore(f"archwright/{Group.number}", store)
        Group.number += 1

    @property
    def is_first(self) -> bool:
        return self.launch.rank == 0

    def begin(self, order: Order) -> None:
        """Rank 0: send the order to begin to all ranks, and open the group.

        Raises:
            LostError: another process has ended, or does not answer.
        """
        with self.together():
            self._answer_all(order)
        if order["do"] != LEAVE:
            self._open(order)

    def _answer_all(self, order: Order) -> None:
        """Answer the requests of ranks with an order, until all have confirmed it.

        torchrun may keep one store over restarts, and sets no variable that is new after each restart and equal on all
        machines. Therefore, each rank requests the order under a unique name. Some names may belong to dead processes,
        so all are answered. Ranks confirm under a prefix of this group.
        """
        everyone, name = self._store, uuid4().hex
        self._store = PrefixStore(name, everyone)
        ranks = range(1, self.launch.size)
        asking, heard = ([f"{what}/{rank}" for rank in ranks] for what in (_ASKING, _HEARD))
        answer, answered = json.dumps({"group": name, "order": order}), set[bytes]()
        until = time.monotonic() + connections.PATIENCE.total_seconds()
        while not self._store.check(heard):
            if time.monotonic() > until:
                if order["do"] == LEAVE:  # nothing to do for them
                    return
                raise self._lost(_silence())
            if everyone.check(asking):
                new = {*everyone.multi_get(asking)} - answered
                for asker in new:
                    everyone.set(f"{_BEGIN}/{asker.decode()}", answer)
                answered |= new
            # Only rank 0 polls; the others wait in the store.
            time.sleep(LOOK_SECONDS)

    def wait_to_begin(self) -> Order:
        """Return rank 0's order to begin, and open the group unless the order is to leave."""
        everyone, name = self._store, uuid4().hex
        everyone.set(f"{_ASKING}/{self.launch.rank}", name)
        everyone.wait([f"{_BEGIN}/{name}"], START)
        answer = json.loads(everyone.get(f"{_BEGIN}/{name}"))
        self._store = PrefixStore(answer["group"], everyone)
        self._store.set(f"{_HEARD}/{self.launch.rank}", "")
        order: Order = answer["order"]
        if order["do"] != LEAVE:
            self._open(order)
        return order

    def _open(self, order: Order) -> None:
        device, backend = order["device"], "gloo"
        if device == "cuda":
            torch.cuda.set_device(self.launch.local_rank)
            backend = "cpu:gloo,cuda:nccl"
        self.layout, self.device = Layout(*order["layout"]), torch.device(device)
        self.is_open = True
        with self.together():
            connections.open_all(backend, self._store, self.launch)

    def first(self, work: Callable[[], T]) -> T:
        """Call a function on rank 0 alone, and return its result on every rank.

        Other ranks wait as long as the function takes: rank 0 broadcasts a message every WAIT_SECONDS, which fails if
        a rank has died.

        Raises:
            EndedError: the function raised; rank 0 raises the exception itself.
        """
        if self.is_first:
            with self.others_waiting() as message:
                value = message["value"] = work()
        else:
            value = self.wait_for_first()
        return value

    @contextlib.contextmanager
    def others_waiting(self) -> Iterator[dict[str, Any]]:
        """Rank 0: keep the ranks in `wait_for_first` during the block, then send them its "value" or exception."""
        over, failures = threading.Event(), list[Exception]()

        def keep_waiting() -> None:
            try:
                while not over.wait(WAIT_SECONDS):
                    self._broadcast({"wait": True})
            except Exception as error:
                failures.append(error)

        def end_waiting(message: dict[str, Any]) -> None:
            over.set()
            thread.join()
            if failures:
                raise failures[0]
            self._broadcast(message)

        thread, message = threading.Thread(target=keep_waiting, daemon=True), {"value": None}
        thread.start()
        try:
            yield message
        except BaseException as error:
            with contextlib.suppress(RuntimeError):  # the block's exception takes precedence
                end_waiting({"error": described(error, "the first process has ended this run")})
                self.agreed = True
            raise
        end_waiting(message)

    def wait_for_first(self) -> Any:
        """Return the result of rank 0's `first` or `others_waiting`."""
        while "wait" in (message := self._broadcast()):
            pass
        if "error" in message:
            self.agreed = True
            raise EndedError(**message["error"])
        return message["value"]

    def _broadcast(self, message: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the message of rank 0 on every rank."""
        messages = [message]
        dist.broadcast_object_list(messages, 0, device=torch.device("cpu"))
        assert messages[0] is not None
        return messages[0]

    def report(self, what: str, value: Any = None, problems: Sequence[str] = ()) -> None:
        """Report a value or problems to rank 0 through the store, from any thread."""
        lines = [f"process {self.launch.rank} of {self.launch.size}: {line}" for line in problems]
        key = _PROBLEMS if problems else str(self.launch.rank)
        self._store.set(f"{what}/{key}", json.dumps(lines or value))

    def reports(self, what: str) -> list[Any] | None:
        """Return the reported values of all ranks, and delete them; None until all have reported.

        Raises:
            UserError: a rank has reported problems.
        """
        if self._store.check([f"{what}/{_PROBLEMS}"]):
            raise UserError(*json.loads(self._store.get(f"{what}/{_PROBLEMS}")))
        keys = [f"{what}/{rank}" for rank in range(self.launch.size)]
        if not self._store.check(keys):
            return None
        found = [json.loads(self._store.get(key)) for key in keys]
        for key in keys:
            self._store.delete_key(key)
        return found

    def meet(self) -> None:
        """Wait for all processes."""
        dist.barrier()

    def leave(self) -> None:
        """Close the group after all ranks have finished.

        Raises:
            LostError, EndedError: another rank has ended before.
        """
        if self.is_open:
            with self.together():
                dist.barrier()
            self.is_open = False
            connections.destroy()

    def abandon(self, end: Mapping[str, Any]) -> None:
        """End a group whose ranks have not agreed to leave it.

        Pending collectives of other ranks raise at once. They raise `end`, or the reason that another rank reported
        before.
        """
        if not self.is_open:
            return
        self._report(end)
        self.is_open = False
        if connections.close() and self.device.type == "cpu":
            connections.destroy()
        else:
            Group.is_stuck = True

    def remember_end(self, run: str, end: Mapping[str, Any] | None) -> None:
        """Store the reason that a run ended for good, for processes that torchrun restarts; None: not ended."""
        self._ends.set(run, json.dumps([_PROCESS, end]))

    def end_before(self, run: str) -> dict[str, Any] | None:
        """Return the reason that a run ended for good before a restart of torchrun; None if unknown."""
        if not self._ends.check([run]):
            return None
        process, end = json.loads(self._ends.get(run))
        # A script may resume a run that it stopped itself.
        return None if process == _PROCESS else end

    def _report(self, end: Mapping[str, Any] | None) -> tuple[bool, dict[str, Any] | None]:
        """Store a reason to end unless another rank has; return if this rank was first, and the first reason.

        A reason has the arguments of an `EndedError`; None if a rank only noticed that another is gone.
        """
        mine = json.dumps({"process": self.launch.rank, "end": end})
        try:
            first = self._store.compare_set(_REPORTED, "", mine).decode()
        except (dist.DistError, RuntimeError):  # the store is gone with the process that kept it
            return self.launch.rank == 0, None
        return first == mine, json.loads(first)["end"]

    def _lost(self, what: str) -> LostError | EndedError:
        is_first, end = self._report(None)
        return LostError(what, is_first=is_first) if end is None else EndedError(**end)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Convert errors of collectives during the block.

        Raises:
            LostError: another process has ended, or does not answer.
            EndedError: another process failed and reported its reason.
        """
        try:
            yield
        except RuntimeError as error:
            if self.agreed or isinstance(error, LostError) or not is_lost(error):
                raise
            raise self._lost(_what(error)) from error


def check_gpus(launch: Launch, there: int) -> None:
    """Refuse more processes on a machine than it has GPUs.

    Raises:
        UserError: it has fewer.
    """
    if launch.local_size > there:
        raise UserError(
            f"--nproc-per-node: found {launch.local_size} processes on a machine of {there} GPU{'s' * (there != 1)}; "
            f"expected at most {there}"
        )


def described(error: BaseException, what: str) -> dict[str, Any]:
    """Return the arguments of the `EndedError` that other ranks raise for an exception."""
    lines = error.lines if isinstance(error, UserError) else str(error).splitlines()
    kinds = [kind.__name__ for kind in type(error).__mro__]
    reason = ": ".join([*kinds[: not isinstance(error, UserError)], *lines[:1]])
    number = vars(error).get("signal")
    return {
        "text": f"{what}: {reason}",
        "kinds": kinds,
        "signal": int(number) if isinstance(number, signal.Signals) else None,
    }


def is_lost(error: BaseException) -> bool:
    """True if an error means that another process does not answer."""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(words in text for words in _ENGINES)


def _what(error: Exception) -> str:
    text = str(error)
    if "timed out waiting" in text.lower():
        return _silence()
    # Only the first line distinguishes NCCL's errors.
    detail = f" ({text.splitlines()[0]})" if "nccl" in text.lower() else ""
    return f"has ended{detail}"


def _silence() -> str:
    return f"does not answer for {duration(connections.PATIENCE.total_seconds())}"


_ENGINES = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")
_ASKING, _BEGIN, _HEARD, _REPORTED = "asking", "begin", "heard", "reported"
_PROBLEMS = "problems"
_PROCESS = uuid4().hex
"""Unique name of this process, unlike its restarts."""
LEAVE = "leave"
"""Order to leave without a run."""
