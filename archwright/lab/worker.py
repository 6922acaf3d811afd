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

if TYPE_CHECKING:
    from archwright.runs import RunFolder
    from archwright.training.loop import DivergedError

Answer = dict[str, Any]

PATIENCE = 600.0
"""Seconds to wait for another process that trains the same run."""


def main() -> None:
    """Do jobs until there are no more."""
    from archwright.machine.waiting import wait_briefly

    wait_briefly()
    from archwright.machine.allocator import tune_allocator
    from archwright.machine.loading import loading

    tune_allocator()
    # Before torch is loaded, which takes seconds: who lets it go meanwhile waits for nothing.
    jobs: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    with loading():
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
    from archwright.ensemble.train import train_together
    from archwright.lab.run_cache import DIVERGED, outcome
    from archwright.runs import RunFolder
    from archwright.training.finalize import finalize_metrics_only
    from archwright.training.loop import DivergedError
    from archwright.training.train import train_in

    def lost(folder: "RunFolder", error: "DivergedError") -> None:
        folder.append({"kind": "event", "step": 0, "name": DIVERGED, "text": str(error)})

    folders = [RunFolder.open(path) for path in job["folders"]]
    for folder in folders:
        _wait_for(folder)
    done = [bool(outcome(folder)) for folder in folders]
    if all(done):
        return {}
    if len(folders) > 1:
        train_together(folders, finalize_metrics_only, done=done, lost=lost)
        return {}
    try:
        train_in(folders[0], finalize_metrics_only, quiet=True)
    except DivergedError as error:
        lost(folders[0], error)
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
    """Return what a run costs, in seconds: to begin, for a step, and for a token that is evaluated; of one in a
    stack of `stack` runs, its share."""
    from archwright.ensemble.session import Together
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
    number, seconds = job["stack"], job["seconds"]
    others = [resolved_session(folder, material)[0] for _ in range(number - 1)]
    trained = Together([session, *others]) if others else session
    step = trained.time_step(seconds) / number
    evaluate(session.model, windows, session.precision)
    started = time.perf_counter()
    evaluate(session.model, windows, session.precision)
    token = (time.perf_counter() - started) / windows.num_tokens
    return {"setup": setup, "step": step, "token": token}


if __name__ == "__main__":
    main()
