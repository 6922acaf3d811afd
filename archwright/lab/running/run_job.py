"""Jobs of a study: train a run, time its steps, tokenize text."""

import json
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from archwright.lab.running.jobs import Answer, Job, job

if TYPE_CHECKING:
    from archwright.runs import RunFolder

COMMAND = (sys.executable, "-P", "-m", "archwright.lab.running.run_job")
"""Start of the command of a job. A worker runs such jobs in its own process."""

PATIENCE = 600.0
"""Seconds to wait for another process that trains the same run."""


def training(folder: Path) -> Job:
    """Return the job that trains a run up to its last evaluation."""
    return job(*COMMAND, "train", str(folder.resolve()), run=str(folder.resolve()))


def timing(folder: Path, seconds: float) -> Job:
    """Return the job that times steps of a run for a number of seconds."""
    return job(*COMMAND, "time", str(folder.resolve()), str(seconds))


def preparation(file: Path, threads: int) -> Job:
    """Return the job that helps to tokenize the text of a run, given as JSON file."""
    return job(*COMMAND, "prepare", str(file), str(threads))


def run(words: Sequence[str]) -> Answer:
    """Run a job and return its answer. Exceptions of training pass through."""
    verb, *arguments = words
    jobs: dict[str, Callable[..., Answer]] = {"train": _train, "time": _time, "prepare": _prepare}
    return jobs[verb](*arguments)


def _train(path: str) -> Answer:
    from archwright.lab.running.run_cache import DIVERGED, NUMERICS, outcome
    from archwright.runs import RunFolder
    from archwright.training.finalize import finalize_metrics_only
    from archwright.training.loop import DivergedError
    from archwright.training.train import train_in

    folder = RunFolder.open(path)
    if (study := folder.environment().get("numerics")) != NUMERICS:
        host = socket.gethostname()
        why = f"{host} has NUMERICS {NUMERICS}, and the study {study}: install the same archwright there"
        return {"state": "refused", "why": why}
    _wait_for(folder)
    if outcome(folder):
        return {}
    try:
        train_in(folder, finalize_metrics_only, quiet=True)
    except DivergedError as error:
        folder.append({"kind": "event", "step": 0, "name": DIVERGED, "text": str(error)})
    return {}


def _wait_for(folder: "RunFolder") -> None:
    """Wait for another process that trains the same run."""
    from archwright.runs.lock import BusyError

    end = time.monotonic() + PATIENCE
    while True:
        try:
            with folder.lock():
                return
        except BusyError:
            if time.monotonic() > end:
                raise
        time.sleep(0.2)


def _prepare(file: str, threads: str) -> Answer:
    from archwright.spec.run_spec import RunSpec
    from archwright.training.data import text_material

    spec = RunSpec.model_validate_json(Path(file).read_text("utf-8"))
    text_material(spec, int(threads))
    return {}


def _time(path: str, seconds: str) -> Answer:
    """Return the seconds for setup, a step, and an evaluated token."""
    from archwright.runs import RunFolder
    from archwright.training.data import reload_data
    from archwright.training.evaluation import evaluate, held_out_windows
    from archwright.training.resolve import resolved_session

    started = time.perf_counter()
    folder = RunFolder(Path(path))
    run = folder.spec
    material = reload_data(run, folder)
    session, _ = resolved_session(folder, material)
    length = run.model.context_length
    windows = held_out_windows(
        material.held_out, material.tokenizer, run.objective, length, stride=length, max_tokens=4096
    )
    setup = time.perf_counter() - started
    step = session.time_step(float(seconds))
    evaluate(session.model, windows, session.precision)
    started = time.perf_counter()
    evaluate(session.model, windows, session.precision)
    token = (time.perf_counter() - started) / windows.num_tokens
    return {"setup": setup, "step": step, "token": token}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1:])))
