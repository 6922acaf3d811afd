"""`python -m tests.faults.exits`: how torchrun ends where the command trained, and where it could not.

Runs of two processes are trained to their end, in turns as copies, as shards and as a tensor group: torchrun must exit
with 0, the run must be finished by two processes, and none may be left. Then runs that cannot end well: a user's
mistakes, a loss that is no number, a killed process, a full disk. torchrun must not exit with 0 and, again, no process
may be left; what was to go wrong must have gone wrong.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from archwright.runs import RunFolder
from bench.scale import environment, torchrun
from tests.faults.scale import GONE, LIMIT, _orphans
from tests.fuzz.seeds import in_memory
from tests.tiny import ROOT, tiny_words, write_text

GRIDS = {
    "2 copies": ("scale.replicate=2",),
    "2 shards": (),
    "2 of a tensor group": ("scale.tensor=2", "model.attention.num_kv_heads=2"),
}
SHORT = ("budget=4steps", "checkpoint.every=2", "evaluate.final_max_tokens=300")
ENDLESS = ("budget=1000000steps", "checkpoint.every=2", "evaluate.every=1000000")
COMMAND = ("-m", "archwright")


class Failure(NamedTuple):
    """A run that cannot end well."""

    words: tuple[str, ...]
    answer: str
    """What the command says, on standard error."""
    command: tuple[str, ...] = COMMAND
    kills: bool = False
    """Whether its second process is killed while it trains."""


FAILURES = {
    "a batch that does not divide": Failure(("batch_size=3",), "expected a multiple of 2"),
    "a text that is not there": Failure(("data.text=/no/such/text",), "/no/such/text"),
    "a loss that is no number": Failure(("optimizer.lr=1e30", "max_grad_norm=none"), "became"),
    "a killed process": Failure(ENDLESS, "a process of this run has ended", kills=True),
    "a full disk": Failure(
        ENDLESS, "No space left on device", ("-m", "tests.scale.struck", "full", "2")
    ),
}


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    output: str
    orphans: list[str]
    was_killed: bool
    seconds: float


def ended(place: Path, command: Sequence[str], words: Sequence[str], *, kills: bool) -> Ended:
    """Run a command of two processes whose run is in a folder, and return how it ended."""
    started, killed = time.monotonic(), False
    variables = environment() | {"ARCHWRIGHT_CACHE": str(place.parent / "cache")}
    with (place / "output").open("wb") as output:
        process = subprocess.Popen(
            [*torchrun(2), *command, *words, "--quiet", "--out", str(place / "run")],
            cwd=ROOT,
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=output,
        )
        try:
            if kills:
                killed = _kill_second(process, RunFolder(place / "run"))
            code = process.wait(LIMIT)
        finally:
            process.kill()
    seconds = time.monotonic() - started
    text = (place / "output").read_text("utf-8", "replace")
    return Ended(code, text, _orphans(place, GONE), killed, seconds)


def _kill_second(process: "subprocess.Popen[bytes]", folder: RunFolder) -> bool:
    """Kill the second process once a checkpoint is there; return whether that was done."""
    end = time.monotonic() + LIMIT
    while process.poll() is None and time.monotonic() < end:
        if folder.checkpoints():
            for child in psutil.Process(process.pid).children(recursive=True):
                if child.environ().get("RANK") == "1":
                    child.kill()
                    return True
        time.sleep(0.05)
    return False


def success_problems(place: Path, found: Ended) -> list[str]:
    """Return what is wrong with how a run ended that has nothing against it."""
    folder = RunFolder(place / "run")
    problems = [f"left: {orphan}" for orphan in found.orphans]
    if found.code:
        problems.append(f"exit code {found.code}: {found.output[-600:]}")
    if not folder.finished:
        problems.append("the run is not finished")
    elif not any("on 2 processes" in record.get("text", "") for record in folder.metrics()):
        problems.append("it was not trained by two processes")
    return problems


def failure_problems(place: Path, found: Ended, failure: Failure) -> list[str]:
    """Return what is wrong with how a run ended that cannot end well."""
    problems = [f"left: {orphan}" for orphan in found.orphans]
    if not found.code:
        problems.append("exit code 0")
    if failure.answer not in found.output:
        problems.append(f"it does not say {failure.answer!r}: {found.output[-600:]}")
    if failure.kills and not found.was_killed:
        problems.append("nothing was killed")
    if RunFolder(place / "run").exists and RunFolder(place / "run").finished:
        problems.append("the run is finished")
    return problems


def main(words: Sequence[str] | None = None) -> int:
    """Run all, print what came of it, and return 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="runs that end well")
    parser.add_argument("--each", type=int, default=1, help="runs of each failure")
    options = parser.parse_args(words)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="archwright-exits-", dir=in_memory()) as scratch:
        folder = Path(scratch)
        text = write_text(folder / "text.txt", 200)

        def played(
            name: str,
            number: int,
            command: Sequence[str],
            changes: Sequence[str],
            problems_of: Callable[[Path, Ended], list[str]],
            *,
            kills: bool = False,
        ) -> None:
            nonlocal wrong
            place = folder / f"{name.replace(' ', '-')}-{number}"
            place.mkdir()
            found = ended(place, command, tiny_words(text, *changes), kills=kills)
            problems = problems_of(place, found)
            wrong += bool(problems)
            line = f"{name}, {number}: exit code {found.code}, {found.seconds:.0f} s"
            print("; ".join((line, *problems)), flush=True)

        grids = [*GRIDS.items()]
        for number in range(options.runs):
            name, more = grids[number % len(grids)]
            played(name, number, COMMAND, (*SHORT, *more), success_problems)
        for name, failure in FAILURES.items():
            for number in range(options.each):
                played(
                    name,
                    number,
                    failure.command,
                    (*SHORT, *failure.words),
                    lambda place, found, failure=failure: failure_problems(place, found, failure),
                    kills=failure.kills,
                )
    total = options.runs + options.each * len(FAILURES)
    print(f"{total - wrong} of {total} ended as they should")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
