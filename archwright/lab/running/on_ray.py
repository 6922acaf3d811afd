"""Jobs as tasks of a Ray cluster, with the cores or the GPUs of a run."""

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from archwright.lab.running.jobs import Handle, Job
from archwright.lab.running.remote import RemoteExecutor, RemoteHandle, RemoteJob, run_remote
from archwright.spec.errors import UserError
from archwright.spec.machine import MachineSpec

ADDRESS = "RAY_ADDRESS"

STORE = 100_000_000
"""Object store of a local cluster in bytes. Small, because runs share files."""

ANSWERS = 5.0
"""Seconds within which a cluster takes a connection."""


class RayExecutor(RemoteExecutor):
    """Tasks of the cluster at RAY_ADDRESS, or of a temporary local cluster.

    Raises:
        UserError: Ray is not installed, or RAY_ADDRESS does not answer.
    """

    def __init__(self, workers: int, cores: int, log: Path, parts: Sequence[Path] = ()) -> None:
        self._ray, self._ours = _connected(cores)
        super().__init__(log, parts)
        self._asked = workers
        self._needs: dict[str, float] = {"num_cpus": 1}

    def places(self, machine: MachineSpec, gpus: int = 1) -> int:
        threads = 1 if machine.threads == "auto" else machine.threads
        needs = {"CPU": threads} | ({"GPU": gpus} if machine.device == "cuda" else {})
        self._needs = {f"num_{name.lower()}s": number for name, number in needs.items()}
        nodes = [
            {name: int(node["Resources"].get(name, 0)) for name in needs}
            for node in self._ray.nodes()
            if node["Alive"]
        ]
        # A run is on one node: what is left over on several makes no place.
        fitting = sum(min(node[name] // needs[name] for name in needs) for node in nodes)
        if not fitting:
            raise UserError(
                f"--on ray: each run needs {_listed(needs)} of one node; found {' and '.join(map(_listed, nodes))}: "
                "set machine.threads or machine.device, or add a node that has as many"
            )
        return self._asked or fitting

    def submit(self, job: Job) -> Handle:
        sent = self.remote(job)
        task = self._ray.remote(max_retries=0, **self._needs)(run_remote)
        return _RayHandle(sent, self._ray, task.remote(sent))

    def close(self) -> None:
        super().close()
        if self._ours:
            self._ray.shutdown()


class _RayHandle(RemoteHandle):
    """A task of Ray."""

    place = "ray"
    pause = 0.05

    def __init__(self, sent: RemoteJob, ray: ModuleType, ref: Any) -> None:
        super().__init__(sent)
        self._ray, self._ref, self._error = ray, ref, ""

    def ended(self) -> str:
        if not self._ray.wait([self._ref], timeout=0)[0]:
            return ""
        try:
            self._ray.get(self._ref)
        except self._ray.exceptions.RayError as error:
            self._error = str(error).strip().splitlines()[-1]
        return "Ray worker died"

    def errors(self) -> str:
        return self._error

    def cancel(self) -> None:
        self.cancelled = True
        self._ray.cancel(self._ref)  # raises KeyboardInterrupt in the task


def _listed(resources: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in resources.items())


def _connected(cores: int) -> tuple[ModuleType, bool]:
    """Return Ray after connecting, and True if the study must disconnect."""
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
    # Ray's workers import from the folder in which it is started; the user's may have a numpy.py.
    with contextlib.chdir(sys.prefix):
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
    """Refuse an address that does not answer. Ray itself needs a minute to report it."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if address != "auto":
            socket.create_connection((host.strip("[]"), int(port)), ANSWERS).close()
    except (OSError, OverflowError, ValueError) as error:
        raise UserError(
            f"{ADDRESS}: no Ray cluster answers at {address} ({getattr(error, 'strerror', None) or error}): expected "
            f"HOST:PORT of one that ray start --head has started, or no {ADDRESS} for one of this machine"
        ) from error
