"""The ranks that torchrun started: rendezvous, orders of rank 0, reports, and failures."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any
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

Order = dict[str, Any]
"""Order of rank 0 to the other ranks, as JSON."""

START = timedelta(days=7)
"""Time limit of the other ranks while rank 0 prepares a run, such as a large text."""
LOOK_SECONDS = 0.1
"""Seconds between rank 0's checks for ranks that have joined."""
ROOM = 2048
"""Bytes of the first message of an order."""
LEAVE = "leave"
"""Order to leave the group."""
_ENGINES = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")
_ASKING, _BEGIN, _HEARD, _REPORTED = "asking", "begin", "heard", "reported"
_PROCESS = uuid4().hex
"""Unique name of this process, which differs after a restart by torchrun."""


class Group(Distributed):
    """All ranks of a run. Rank 0 sends orders, and the others execute them.

    Attributes:
        number: Number of groups that this process has joined, equal on all ranks.
        is_stuck: True if a failed group prevents another one, because a GPU still waits for other ranks.
        busy: True if all ranks execute an order and would not receive another one.
    """

    number = 0
    is_stuck = False

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch)
        self.is_open = self.busy = False
        with awaited(launch):
            store, _, _ = next(rendezvous("env://", timeout=START))
        self._ends = PrefixStore("archwright/ends", store)
        # A script may train twice, so groups are numbered. Restarted processes use the same numbers, so `begin` and
        # `wait_to_begin` replace this store by one with a unique name.
        self._store = PrefixStore(f"archwright/{Group.number}", store)
        Group.number += 1

    def begin(self, order: Order) -> None:
        """Send the first order, and connect; called by rank 0.

        Raises:
            LostError: Another rank has ended or does not answer.
        """
        with self.together():
            self._answer_all(order)
        if order["do"] != LEAVE:
            self._open(order)

    def _answer_all(self, order: Order) -> None:
        """Send an order to each rank that asks for it, until all have received it.

        torchrun often keeps one store over all restarts, and no value that it sets is equal on all machines and new
        after each restart: TORCHELASTIC_RESTART_COUNT counts the failures that one machine's torchrun has noticed. So
        each rank asks under a unique name, which no order to earlier processes answers. Some names may belong to ended
        processes: rank 0 answers every name, until each rank has confirmed in the store of this group.
        """
        everyone, name = self._store, uuid4().hex
        self._store = PrefixStore(name, everyone)
        ranks = range(1, self.launch.size)
        asking, heard = ([f"{key}/{rank}" for rank in ranks] for key in (_ASKING, _HEARD))
        answer, answered = json.dumps({"group": name, "order": order}), set[bytes]()
        until = time.monotonic() + connections.PATIENCE.total_seconds()
        while not self._store.check(heard):
            if time.monotonic() > until:
                if order["do"] == LEAVE:  # there is nothing to do without the other ranks either
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
        """Return the first order, and connect if there is something to do."""
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

    def order(self, order: Order) -> None:
        """Broadcast an order; called by rank 0.

        Raises:
            LostError: Another rank has ended or does not answer.
        """
        text = json.dumps(order).encode()
        head = len(text).to_bytes(8, "little") + text[: ROOM - 8]
        with self.together():
            dist.broadcast(torch.frombuffer(bytearray(head.ljust(ROOM)), dtype=torch.uint8), 0)
            if rest := text[ROOM - 8 :]:
                dist.broadcast(torch.frombuffer(bytearray(rest), dtype=torch.uint8), 0)

    def next_order(self) -> Order:
        """Receive an order from rank 0.

        Raises:
            LostError: Rank 0 has ended or does not answer.
        """
        head = torch.empty(ROOM, dtype=torch.uint8)
        with self.together():
            dist.broadcast(head, 0)
            content = bytes(head.tolist())
            length = int.from_bytes(content[:8], "little")
            text = content[8 : 8 + length]
            if length > ROOM - 8:
                rest = torch.empty(length - ROOM + 8, dtype=torch.uint8)
                dist.broadcast(rest, 0)
                text += bytes(rest.tolist())
        order: Order = json.loads(text)
        return order

    def tell(self, key: str, value: Any) -> None:
        """Report a value to rank 0 without waiting. Another thread may call this."""
        self._store.set(f"{key}/{self.launch.rank}", json.dumps(value))

    def reports(self, key: str) -> list[Any] | None:
        """Return and delete the reports of all ranks; None until all have reported."""
        keys = [f"{key}/{rank}" for rank in range(self.launch.size)]
        if not self._store.check(keys):
            return None
        values = [json.loads(self._store.get(key)) for key in keys]
        for key in keys:
            self._store.delete_key(key)
        return values

    def meet(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def leave(self) -> None:
        """Disconnect after all ranks have arrived.

        Raises:
            LostError, EndedError: Another rank has ended before.
        """
        if self.is_open:
            with self.together():
                dist.barrier()
            self.is_open = False
            connections.destroy()

    def abandon(self, end: Mapping[str, Any]) -> None:
        """Disconnect a rank that cannot execute orders.

        Pending operations of other ranks fail at once. Their exceptions report `end`, or an earlier failure."""
        if not self.is_open:
            return
        self._report(end)
        self.is_open = False
        if connections.close() and self.device.type == "cpu":
            connections.destroy()
        else:
            Group.is_stuck = True

    def remember_end(self, run: str, end: Mapping[str, Any] | None) -> None:
        """Store the reason of a run's end for processes that torchrun restarts; None: the run continues."""
        self._ends.set(run, json.dumps([_PROCESS, end]))

    def end_before(self, run: str) -> dict[str, Any] | None:
        """Return the reason of a run's end before a restart by torchrun; None if the run did not end."""
        if not self._ends.check([run]):
            return None
        process, end = json.loads(self._ends.get(run))
        # A script may resume a run that it has stopped itself.
        return None if process == _PROCESS else end

    def _report(self, end: Mapping[str, Any] | None) -> tuple[bool, dict[str, Any] | None]:
        """Store the reason of a failure, unless another rank has; None: only the loss of another rank is known.

        Returns:
            Whether this rank is the first, and the stored reason, which are the arguments of an `EndedError`.
        """
        mine = json.dumps({"process": self.launch.rank, "end": end})
        try:
            first = self._store.compare_set(_REPORTED, "", mine).decode()
        except (dist.DistError, RuntimeError):  # the process with the store has ended
            return self.launch.rank == 0, None
        return first == mine, json.loads(first)["end"]

    def _lost(self, what: str) -> LostError | EndedError:
        is_first, end = self._report(None)
        return LostError(what, is_first=is_first) if end is None else EndedError(**end)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Execute an order on all ranks.

        Raises:
            LostError: Another rank has ended or does not answer.
            EndedError: Another rank has failed and reported the reason.
        """
        was_busy, self.busy = self.busy, True
        try:
            yield
        except LostError:
            raise
        except RuntimeError as error:
            text = str(error)
            if not isinstance(error, dist.DistError) and not any(
                words in text.lower() for words in _ENGINES
            ):
                raise
            # NCCL's errors differ only in their first line.
            detail = f" ({text.splitlines()[0]})" if "nccl" in text.lower() else ""
            is_late = "timed out waiting" in text.lower()
            raise self._lost(_silence() if is_late else f"has ended{detail}") from error
        self.busy = was_busy


def _silence() -> str:
    return f"does not answer for {duration(connections.PATIENCE.total_seconds())}"


def check_gpus(launch: Launch, there: int) -> None:
    """Refuse more ranks on a machine than it has GPUs.

    Raises:
        UserError: There are fewer GPUs than ranks.
    """
    if launch.local_size > there:
        raise UserError(
            f"--nproc-per-node: found {launch.local_size} processes on a machine of {there} GPU{'s' * (there != 1)}; "
            f"expected at most {there}"
        )
