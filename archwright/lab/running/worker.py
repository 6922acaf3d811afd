"""Worker process. Jobs of `run_job` run within it, with torch already loaded.

It reads jobs as JSON lines from standard input and answers in JSON lines. When its input ends, it saves
a checkpoint and exits.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from archwright.cpu import prepare_process
from archwright.lab.running.jobs import PATIENCE, Answer

GLANCE = 0.2
"""Seconds between looks at a command."""


def main() -> None:
    """Do jobs until there are no more."""
    # Before torch is loaded, which takes seconds: who lets it go meanwhile waits for nothing.
    jobs: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    prepare_process()
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
    """Queue each line; at the end of the input, stop the training."""
    for line in sys.stdin:
        jobs.put(line)
    jobs.put("")
    os.kill(os.getpid(), signal.SIGTERM)


def answer_to(job: dict[str, Any]) -> Answer:
    """Run a job and return its result. An interrupt ends the process."""
    from archwright.lab.running import run_job
    from archwright.spec.errors import UserError
    from archwright.training.train import Stopped

    argv, start = job["argv"], len(run_job.COMMAND)
    try:
        with contextlib.suppress(OSError):  # paths that are relative to it are then reported
            os.chdir(job["folder"])
        if tuple(argv[1:start]) != run_job.COMMAND[1:]:
            return _subprocess(argv)
        return {"state": "done", **run_job.run(argv[start:])}
    except Stopped:
        return {"state": "stopped"}
    except UserError as error:
        return {"state": "failed", "why": error.lines[0]}
    except Exception as error:
        traceback.print_exc()
        first = str(error).partition("\n")[0]
        return {"state": "failed", "why": f"{type(error).__name__}: {first}"}


def _subprocess(argv: list[str]) -> Answer:
    """Run a command. Forward SIGTERM to it, and kill it before PATIENCE ends."""
    asked: list[float] = []
    before = signal.signal(signal.SIGTERM, lambda *_: asked.append(time.monotonic()))
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    while (code := process.poll()) is None:
        time.sleep(GLANCE)
        if asked and time.monotonic() > asked[0] + 0.9 * PATIENCE:
            process.kill()
        elif asked:
            process.terminate()
    signal.signal(signal.SIGTERM, before)
    if code == -signal.SIGTERM:
        return {"state": "stopped"}
    if code < 0:
        return {"state": "died", "why": f"its process died by signal {-code}"}
    return {"state": "failed", "why": f"exit code {code}"} if code else {"state": "done"}


if __name__ == "__main__":
    main()
