"""Workers on a Ray cluster: an actor each, with the cores or the GPU that a run needs."""

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from archwright.lab.agent import Agent
from archwright.lab.remote_workers import RemoteWorker, RemoteWorkers
from archwright.lab.workers import PATIENCE, Events, Worker
from archwright.spec.errors import UserError
from archwright.spec.run_spec import MachineSpec

ADDRESS = "RAY_ADDRESS"

STORE = 100_000_000
"""Bytes of memory that a cluster of this machine alone shares between processes; runs share files."""

ANSWERS = 5.0
"""Seconds within which a cluster takes a connection."""


Resources = Mapping[str, float]
"""What a node has, by Ray's names."""


class RayWorkers(RemoteWorkers):
    """Workers on the cluster of RAY_ADDRESS, or on one of this machine alone that ends with them.

    Raises:
        UserError: Ray is not installed, or nothing answers at RAY_ADDRESS.
    """

    pause = 0.05

    def __init__(self, workers: int, cores: int, log: Path, parts: Sequence[Path] = ()) -> None:
        self._ray, self._ours = _connected(cores)
        super().__init__(log, parts)
        self._asked = workers
        self._needs: dict[str, float] = {"num_cpus": 1}

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._ours:
            self._ray.shutdown()

    def prepare(self, machine: MachineSpec) -> int:
        threads = 1 if machine.threads == "auto" else machine.threads
        needs = {"CPU": threads} | ({"GPU": 1} if machine.device == "cuda" else {})
        self._needs = {f"num_{name.lower()}s": number for name, number in needs.items()}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        # A run is on one node: what is left over on several makes no place.
        fitting = sum(_places(node, needs) for node in nodes)
        if not fitting:
            raise UserError(f"--on ray: {_why_nowhere(nodes, needs)}")
        return self._asked or fitting

    def _start(self) -> Worker:
        # A second thread, for the order to leave.
        kind = self._ray.remote(max_concurrency=2, **self._needs)(Agent)
        return _RayWorker(self._ray, kind.remote(self.order), self._events)


class _RayWorker(RemoteWorker):
    """An actor of Ray."""

    def __init__(self, ray: ModuleType, agent: Any, events: Events) -> None:
        super().__init__(events)
        self._ray, self._agent = ray, agent
        self._hello = agent.hello.remote()
        self._doing: Any = None

    def give(self, job: dict[str, Any]) -> None:
        self.job, self._doing = job, None
        if self.started:
            self._doing = self._agent.do.remote(job)

    def look(self) -> None:
        if not self.started:
            if self._is_ready(self._hello) and (hello := self._got(self._hello)):
                self._said_hello(hello)
                self._doing = self._agent.do.remote(self.job)
        elif self._doing is not None and self._is_ready(self._doing):
            answer = self._got(self._doing)
            if answer is None or self._answer(answer):
                self._doing = None

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._leaving = self._agent.leave.remote() if self.started else None

    def end(self) -> str:
        self.release()
        last = [ref for ref in (self._doing, self._leaving) if ref is not None]
        if last:
            self._ray.wait(last, num_returns=len(last), timeout=PATIENCE)
        self._ray.kill(self._agent)
        return "its Ray worker died"

    def _is_ready(self, ref: Any) -> bool:
        return bool(self._ray.wait([ref], timeout=0)[0])

    def _got(self, ref: Any) -> Any:
        """Return what an actor returned; None where it died or could not begin, which is told."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref)
        except errors.RayError as error:
            died = isinstance(error, errors.RayActorError)
            if died and not getattr(error, "actor_init_failed", False):
                self._events.put((self, ""))
            else:
                last = str(error).strip().splitlines()[-1]
                self._refuse(f"--on ray: a worker could not begin: {last}")
            return None


def _places(node: Resources, needs: Mapping[str, int]) -> int:
    """Return how many runs a node has room for."""
    return min(int(node.get(name, 0)) // number for name, number in needs.items())


def _why_nowhere(nodes: Sequence[Resources], needs: Mapping[str, int]) -> str:
    """Say why a run fits on no node, and what to do."""
    kind = ""
    if "GPU" in needs:
        with_gpu = [node for node in nodes if _places(node, {"GPU": needs["GPU"]})]
        if not with_gpu:
            return (
                f"each run needs a GPU; found none on {_count(nodes)}; add a node that has one, or set "
                "machine.device=cpu"
            )
        nodes, kind = with_gpu, " with a GPU"
    threads, most = needs["CPU"], max((int(node.get("CPU", 0)) for node in nodes), default=0)
    found = f"{most} at most" if most else "none"
    fewer = f"set machine.threads={most}, or " if most else ""
    return (
        f"each run needs {threads} CPU{'s' * (threads > 1)} (machine.threads) of one node; found {found} on "
        f"{_count(nodes)}{kind}; {fewer}add a node that has as many"
    )


def _count(nodes: Sequence[Resources]) -> str:
    return f"the cluster's {len(nodes)} node{'s' * (len(nodes) != 1)}"


def _connected(cores: int) -> tuple[ModuleType, bool]:
    """Return Ray, connected, and whether that is to be ended with the study."""
    try:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray
    except ImportError:
        raise UserError(
            "--on ray: Ray is not installed; run: pip install 'archwright[ray]'"
        ) from None
    if ray.is_initialized():
        return ray, False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = os.environ.get(ADDRESS, "")
    if not address or address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        quiet |= {"include_dashboard": False, "object_store_memory": STORE}
        ray.init("local", num_cpus=cores, **quiet)
        return ray, True
    _check_address(address)
    try:
        ray.init(address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"{ADDRESS}: {address}: {str(error).splitlines()[0]}") from error
    return ray, True


def _check_address(address: str) -> None:
    """Refuse an address where nothing answers, of which Ray itself is sure only after a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdecimal():
        raise UserError(f'{ADDRESS}: found "{address}"; expected HOST:PORT, such as head-node:6379')
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWERS).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"{ADDRESS}: no Ray cluster answers at {address} ({why}): start one with ray start --head, or unset "
            f"{ADDRESS} for one of this machine"
        ) from error
