"""Tokens of a run, made by several processes of this machine at once."""

import tempfile
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

from archwright.data.prepare import num_threads
from archwright.lab.running.local import LocalExecutor
from archwright.lab.running.run_job import preparation
from archwright.lab.running.workers import Done, Workers
from archwright.spec.run_spec import RunSpec
from archwright.text.cache import sweep
from archwright.training.data import Material, text_material

LOOK_SECONDS = 0.2
"""Time between looks at whether a process has died."""


def prepare_together(run: RunSpec, processes: int, parts: Sequence[Path] = ()) -> Material:
    """Tokenize the text of a run with helper processes on this machine.

    Helpers end with this process, which completes their unfinished work.
    """
    threads = max(1, num_threads() // processes)
    sweep()
    if processes == 1:
        return text_material(run)
    failed: list[Done] = []
    ended = threading.Event()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="archwright-") as folder,
            Workers(LocalExecutor(Path(folder) / "log.txt", parts), processes - 1) as workers,
        ):
            file = Path(folder) / "run.json"
            file.write_text(run.model_dump_json(by_alias=True), encoding="utf-8")
            for number in range(processes - 1):
                workers.give(number, preparation(file, threads))
            attendant = threading.Thread(target=_attend, args=(workers, ended, failed))
            attendant.start()
            try:
                material = text_material(run, threads)
            finally:
                ended.set()
                attendant.join()
    finally:
        sweep()  # what they were writing when this process was interrupted
    for done in failed:
        warnings.warn(
            f"a process that was to help has ended ({done.why}); the others did its work",
            stacklevel=2,
        )
    return material


def _attend(workers: Workers, ended: threading.Event, failed: list[Done]) -> None:
    """Restart helpers that die, up to the number of tries of `Workers`."""
    while workers.running and not ended.is_set():
        failed += [done for done in workers.wait(LOOK_SECONDS) if done.state == "failed"]
