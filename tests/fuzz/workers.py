"""Processes that read cases and may hang, grow or die: forked, watched, and forked again."""

import faulthandler
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

import psutil

from tests.fuzz.cases import CPU_SECONDS, GROWTH, WALL_SECONDS, Outcome, Reader, peak
from tests.fuzz.quicker import remember
from tests.fuzz.seeds import Seed
from tests.fuzz.targets import Target

BLOCK = 250
"""Cases that a process reads at most, so that it does not grow old."""
ROOM = 3 << 30
"""Bytes of addresses that a process may take beyond those it began with: the machine is shared."""


def judged(
    target: Target, seeds: list[Seed], numbers: Sequence[int], seed: int, folder: Path, jobs: int
) -> Iterator[Outcome]:
    """Yield how each case ended, as they end, read by `jobs` processes at once."""
    waiting = [list(numbers[i : i + BLOCK]) for i in range(0, len(numbers), BLOCK)]
    running: list[_Process] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(_Process(target, seeds, waiting.pop(0), seed, folder))
        select.select([process.answers for process in running], [], [], 0.2)
        for process in list(running):
            yield from process.ended()
            if process.over:
                running.remove(process)
                if process.left:
                    waiting.insert(0, process.left)


class _Process:
    """A process that reads some cases."""

    def __init__(
        self, target: Target, seeds: list[Seed], numbers: list[int], seed: int, folder: Path
    ) -> None:
        self.left, self.over = numbers, False
        self._log = folder / f"log-{numbers[0]}"
        reading, writing = os.pipe()
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reading)
            _serve(
                target, seeds, numbers, seed, folder / f"worker-{numbers[0]}", writing, self._log
            )
        os.close(writing)
        os.set_blocking(reading, False)
        self.answers: IO[bytes] = os.fdopen(reading, "rb", buffering=0)
        self._buffer = b""
        self._handle = psutil.Process(self._pid)
        self._now = _Now(-1, False)

    def ended(self) -> Iterator[Outcome]:
        """Yield the cases that have ended since the last call; end one that takes too long."""
        yield from self._lines()
        if self.over:
            return
        if (why := self._too_much()) and not self._lines_waiting():
            yield self._killed(*why)

    def _lines(self) -> Iterator[Outcome]:
        while chunk := self.answers.read(1 << 16):
            self._buffer += chunk
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "begins" in told:
                self._now = _Now(told["begins"], told["kept"], self._cpu())
                continue
            self.left.remove(told["number"])
            self._now = _Now(-1, False)
            yield Outcome(**told)
        if chunk == b"":
            yield from self._died()

    def _lines_waiting(self) -> bool:
        return bool(select.select([self.answers], [], [], 0)[0])

    def _died(self) -> Iterator[Outcome]:
        """The pipe is closed: all is done, or the process has died in a case."""
        self.over = True
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self.answers.close()
        said = self._said()
        if self._now.number >= 0:
            end = "big" if "memory allocation" in said else "traceback"
            yield self._outcome(end, f"the process died ({code}). {said}")
        elif code not in (0, _GREW):
            raise AssertionError(f"a worker failed outside of cases: {code}\n{said}")

    def _too_much(self) -> tuple[str, str] | None:
        if self._now.number < 0:
            return None
        seconds, wall = self._cpu() - self._now.cpu, time.monotonic() - self._now.started
        if seconds > 1.5 * CPU_SECONDS or wall > WALL_SECONDS:
            return "slow", f"ended after {seconds:.1f} s of CPU, {wall:.1f} s"
        return None

    def _killed(self, end: str, why: str) -> Outcome:
        os.kill(self._pid, signal.SIGUSR1)  # it writes where it is
        time.sleep(0.2)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self.over = True
        self.answers.close()
        return self._outcome(end, f"{why}. {self._said()}")

    def _outcome(self, end: str, text: str) -> Outcome:
        self.left.remove(self._now.number)
        return Outcome(self._now.number, end, self._now.kept, False, text)

    def _said(self) -> str:
        return self._log.read_text("utf-8", "replace")[-4000:] if self._log.exists() else ""

    def _cpu(self) -> float:
        try:
            times = self._handle.cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)


@dataclass(frozen=True)
class _Now:
    """The case that is being read; none has the number -1."""

    number: int
    kept: bool
    cpu: float = 0.0
    started: float = field(default_factory=time.monotonic)


_GREW = 17  # exit code of a process that has grown too much to tell of further growth


def _serve(
    target: Target,
    seeds: list[Seed],
    numbers: list[int],
    seed: int,
    folder: Path,
    writing: int,
    log: Path,
) -> None:
    """Read cases and write how they ended; never returns."""
    code = 1
    try:
        with log.open("w") as errors:
            os.dup2(errors.fileno(), 2)
        faulthandler.register(signal.SIGUSR1, file=2)
        _limit_addresses()
        remember()
        reader = Reader(target, seeds, folder)
        with os.fdopen(writing, "w", buffering=1) as answers:
            code = _answer(reader, numbers, seed, answers)
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _answer(reader: Reader, numbers: list[int], seed: int, answers: IO[str]) -> int:
    for number in numbers:
        case = reader.case(number, seed)
        reader.known(case.seed)
        print(json.dumps({"begins": number, "kept": case.kept}), file=answers)
        before = peak()
        outcome = asdict(reader.judge(case))
        if grown := max(0, peak() - before - GROWTH):
            told = f"{(grown + GROWTH) / 1e9:.1f} GB more; {outcome['text']}"
            outcome |= {"end": "big", "text": told}
        print(json.dumps(outcome), file=answers)
        if grown:
            return _GREW
    return 0


def _limit_addresses() -> None:
    taken = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, taken + ROOM))
