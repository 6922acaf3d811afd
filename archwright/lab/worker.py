"""`python -P -m archwright.lab.worker [PARTS_FILE ...]`: a process that trains run folders, one after another.

It reads a line of JSON for each job from standard input and answers with one. When its input ends, as the
process that gave the work died or let it go, it saves what it is training and leaves.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from archwright.cpu import prepare_process

if TYPE_CHECKING:
    from archwright.runs import RunFolder

Answer = dict[str, Any]

PATIENCE = 600.0
"""Seconds to wait for another process that trains the same run."""


def main() -> None:
    """Do jobs until there are no more."""
    prepare_process()
    # Before torch is loaded, which takes seconds: who lets it go meanwhile waits for nothing.
    jobs: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    import archwright.training.train  # noqa: F401

    if sys.argv[1:]:
        from archwright.plugins import load_parts_file

        for file in sys.argv[1:]:
            load_parts_file(Path(file))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints goes to the log
    while line := jobs.get():
        answer = answer_to(json.loads(line))
        print(json.dumps(answer), file=answers, flush=True)
        if answer["state"] == "stopped":
            return


def _listen(jobs: "SimpleQueue[str]") -> None:
    """Hand on each line; at the end of the input, ask the training to save and stop."""
    for line in sys.stdin:
        jobs.put(line)
    jobs.put("")
    os.kill(os.getpid(), signal.SIGTERM)


def answer_to(job: dict[str, Any]) -> Answer:
    """Do a job and tell how it ended; only a wish to stop ends the process."""
    from archwright.spec.errors import UserError
    from archwright.training.train import Stopped

    try:
        done = {"train": _train, "time": _time, "prepare": _prepare}[job["do"]](job)
        return {"state": "done", **done}
    except Stopped:
        return {"state": "stopped"}
    except UserError as error:
        return {"state": "failed", "why": error.lines[0]}
    except Exception as error:
        traceback.print_exc()
        return {"state": "failed", "why": f"{type(error).__name__}: {str(error).splitlines()[:1]}"}


def _train(job: dict[str, Any]) -> Answer:
    from archwright.lab.run_cache import DIVERGED, outcome
    from archwright.runs import RunFolder
    from archwright.training.finalize import finalize_metrics_only
    from archwright.training.loop import DivergedError
    from archwright.training.train import train_in

    folder = RunFolder.open(job["folder"])
    _wait_for(folder)
    if outcome(folder):
        return {}
    try:
        train_in(folder, finalize_metrics_only, quiet=True)
    except DivergedError as error:
        folder.append({"kind": "event", "step": 0, "name": DIVERGED, "text": str(error)})
    return {}


def _prepare(job: dict[str, Any]) -> Answer:
    """Take part in making the tokens of a run."""
    from archwright.spec.run_spec import RunSpec
    from archwright.training.data import text_material

    text_material(RunSpec.model_validate(job["run"]), job["threads"])
    return {}


def _wait_for(folder: "RunFolder") -> None:
    """Wait for another process that trains here: one that is told to save, or of another study."""
    from archwright.spec.errors import UserError

    end = time.monotonic() + PATIENCE
    while True:
        try:
            with folder.lock():
                return
        except UserError:
            if time.monotonic() > end:
                raise
        time.sleep(0.2)


def _time(job: dict[str, Any]) -> Answer:
    """Return the seconds of a run: to begin, for a step, and for a token that is evaluated."""
    from archwright.runs import RunFolder
    from archwright.training.data import reload_data
    from archwright.training.evaluation import evaluate, held_out_windows
    from archwright.training.resolve import resolved_session

    started = time.perf_counter()
    folder = RunFolder(Path(job["folder"]))
    run = folder.spec
    material = reload_data(run, folder)
    session, _ = resolved_session(folder, material)
    length = run.model.context_length
    windows = held_out_windows(
        material.held_out,
        material.tokenizer,
        run.objective,
        length,
        stride=length,
        max_tokens=4096,
    )
    setup = time.perf_counter() - started
    step = session.time_step(job["seconds"])
    evaluate(session.model, windows, session.precision)
    started = time.perf_counter()
    evaluate(session.model, windows, session.precision)
    token = (time.perf_counter() - started) / windows.num_tokens
    return {"setup": setup, "step": step, "token": token}


if __name__ == "__main__":
    main()
