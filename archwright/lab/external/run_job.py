"""A run of a command: process group, log, metric, and record of the result."""

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from archwright.files import atomic_write
from archwright.lab.external.metric import Reading, metric_of
from archwright.spec.errors import UserError

RESULT, FAILURE, PROCESS, LOG = "result.json", "failure.json", "process.json", "log.txt"
GLANCE = 0.01
"""Seconds between looks at a process."""
GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL."""
SHOWN = 8
"""Last lines of a log that an error quotes."""
TRIES = 2


@dataclass(frozen=True)
class Order:
    """A command to run in a folder."""

    argv: tuple[str, ...]
    folder: str
    """Contains the log, the result, and {out} as the folder `out`."""
    metric: str
    key: Mapping[str, str]
    """Identity of the run: hashes of command, variant and code."""
    timeout: float | None = None
    diverged_exit: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Additional variables, such as CUDA_VISIBLE_DEVICES."""


def run(order: Order, stop: threading.Event) -> str:
    """Run a command up to twice; return "done", "failed" or "stopped"."""
    folder = Path(order.folder)
    (folder / "out").mkdir(parents=True, exist_ok=True)
    _end_orphan(folder)
    why = ""
    for attempt in range(TRIES):
        started = time.monotonic()
        begin = (folder / LOG).stat().st_size if (folder / LOG).exists() else 0
        code = _attempt(order, folder, stop, attempt)
        if stop.is_set():
            return "stopped"
        seconds = time.monotonic() - started
        try:
            if isinstance(code, str):
                raise UserError(code)
            if code == order.diverged_exit:
                record(folder, [Reading(None, None, math.nan)], seconds, order.key)
                return "done"
            if code:
                raise UserError(f"signal {-code}" if code < 0 else f"exit status {code}")
            log = (folder / LOG).read_bytes()[begin:].decode("utf-8", "replace")
            readings = metric_of(order.metric).readings(log, folder / "out")
        except UserError as error:
            why = error.lines[0]
            continue
        record(folder, readings, seconds, order.key)
        return "done"
    atomic_write(folder / FAILURE, json.dumps({"why": why}))
    return "failed"


def record(folder: Path, readings: list[Reading], seconds: float, key: Mapping[str, str]) -> None:
    """Record the result of a run by one rename."""
    values = {"key": dict(key), "seconds": seconds, "readings": readings}
    atomic_write(folder / RESULT, json.dumps(values))


def result(folder: Path) -> dict[str, Any] | None:
    """Return the recorded result of a run, None if there is none."""
    try:
        values: dict[str, Any] = json.loads((folder / RESULT).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    values["readings"] = [Reading(*reading) for reading in values["readings"]]
    return values


def failure(folder: Path) -> str:
    """Return the reason of a failure."""
    with contextlib.suppress(OSError, ValueError):
        return str(json.loads((folder / FAILURE).read_text("utf-8"))["why"])
    return "it was killed"


def last_lines(folder: Path) -> list[str]:
    """Return the last lines of a run's log."""
    with contextlib.suppress(OSError):
        text = (folder / LOG).read_bytes()[-20_000:].decode("utf-8", "replace")
        return [line for line in text.splitlines() if line.strip()][-SHOWN:]
    return []


def _attempt(order: Order, folder: Path, stop: threading.Event, attempt: int) -> int | str:
    """Run the command once; return its exit status, or the reason for a missing one."""
    with (folder / LOG).open("ab") as log:
        if attempt:
            log.write(b"\n--- second try ---\n")
        try:
            process = subprocess.Popen(
                order.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "MASTER_PORT": str(_free_port()), **order.environment},
                start_new_session=True,
            )
        except OSError as error:
            return f"{order.argv[0]}: {error.strerror}"
        _remember(process.pid, folder)
        end = math.inf if order.timeout is None else time.monotonic() + order.timeout
        kill_at, why = math.inf, ""
        # WNOWAIT: the leader stays a zombie, so that its group cannot be that of another process.
        while not os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            now = time.monotonic()
            if kill_at == math.inf and (stop.is_set() or now > end):
                why = f"more than the {order.timeout:g} s of --timeout" if now > end else "stopped"
                _signal(process, signal.SIGTERM)
                kill_at = now + GRACE
            elif now > kill_at:
                _signal(process, signal.SIGKILL)
            time.sleep(GLANCE)
        _signal(process, signal.SIGKILL)  # children that are left
        code = process.wait()
        return why or code


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _remember(pid: int, folder: Path) -> None:
    """Record a process, which outlives this one if that is killed."""
    with contextlib.suppress(psutil.Error):
        started = psutil.Process(pid).create_time()
        found = {"pid": pid, "started": started, "host": socket.gethostname()}
        atomic_write(folder / PROCESS, json.dumps(found))


def _end_orphan(folder: Path) -> None:
    """End the process group of an earlier, killed study in this folder."""
    with contextlib.suppress(OSError, ValueError, KeyError, psutil.Error):
        found = json.loads((folder / PROCESS).read_text("utf-8"))
        same = psutil.Process(found["pid"]).create_time() == found["started"]
        if same and found["host"] == socket.gethostname():
            os.killpg(found["pid"], signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


def main() -> None:
    """Run the order that the last argument contains as JSON."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    state = run(Order(**json.loads(sys.argv[-1])), stop)
    if state == "stopped":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    sys.exit(state != "done")


if __name__ == "__main__":
    main()
