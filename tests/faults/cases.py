"""One case: a command is struck, the same command runs again, and what came of it is looked at."""

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.faults.disk import ERRORS, Blow, Disk
from tests.faults.scenes import USERS, Scene, is_lock
from tests.fuzz.cases import unreadable

PATIENCE = 300.0
"""Seconds that a command may take at most."""
LINES = 3
"""Lines of an answer at most."""


class Ended(NamedTuple):
    """How a command ended: its exit code, below 0 by a signal; what it printed; the events that it met."""

    code: int
    output: str
    events: list[str]
    results: Any = None


@dataclass
class Verdict:
    """What was wrong after a blow; nothing, if all held."""

    scene: str
    number: int
    kind: str
    blow: str
    problems: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


class Stage:
    """The folder in which a scene is played again and again."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.scene, self.folder = scene, folder
        self.before = folder / "before"
        self.before.mkdir(parents=True)
        self._users = self._prepare()
        self.plain = self._undisturbed()

    @property
    def num_events(self) -> int:
        """Events of an undisturbed run."""
        return len(self.plain.events)

    def blow(self, number: int, of: int, kind: str, seed: int) -> Blow:
        """Return one blow of `of`, which fall evenly over the events."""
        dice = random.Random(f"{self.scene.name}/{kind}/{seed}/{number}")
        at = 1 + int((number + dice.random()) / of * self.num_events)
        error = dice.choice(ERRORS) if kind == "error" else 0
        for_good = bool(error) and dice.random() < 0.5
        return Blow(min(at, self.num_events), error, for_good, dice.random() < 0.5)

    def struck(self, number: int, kind: str, blow: Blow) -> Verdict:
        """Strike the command, run it again, and judge."""
        place = self._laid("case")
        first = self._play(place, blow)
        return self._judged(place, Verdict(self.scene.name, number, kind, str(blow)), first, blow)

    def worker_killed(self, number: int, seed: int) -> Verdict:
        """Kill one of the processes that the command has started, at some moment, and judge."""
        dice = random.Random(f"{self.scene.name}/worker/{seed}/{number}")
        place = self._laid("case")
        killed: list[float] = []

        def watch(pid: int, seconds: float) -> None:
            for child in psutil.Process(pid).children() if not killed else ():
                if seconds > moment:
                    child.kill()
                    killed.append(seconds)
                    return

        moment = dice.uniform(0.5, 8.0)
        first = self._play(place, watch=watch)
        found = Verdict(self.scene.name, number, "worker", f"a worker killed after {killed} s")
        if first.code:
            found.problems.append(
                f"exit code {first.code} though one worker died: {first.output[-300:]}"
            )
        return self._judged(place, found, first, None)

    def _judged(self, place: Path, found: Verdict, first: Ended, blow: Blow | None) -> Verdict:
        if blow and blow.error:
            found.problems += _unclear(first)
        elif blow and first.code != -signal.SIGKILL:
            found.blow += f" (not met: exit code {first.code})"
        self._wait_for_orphans(place)
        again = self._play(place)
        self._wait_for_orphans(place)
        if again.code:
            found.problems.append(f"again: exit code {again.code}: {again.output[-300:].strip()}")
        elif again.results != self.plain.results:
            found.problems.append(f"again: other results: {_difference(self.plain, again)}")
        found.problems += [f"harmed: {name}" for name in self._harmed(place)]
        left = _names(place) - self._expected
        found.left = sorted(name for name in left if str(Path(name).parent) not in left)
        return found

    def clear(self) -> None:
        shutil.rmtree(self.folder / "case", ignore_errors=True)

    def _prepare(self) -> dict[str, bytes]:
        """Make what lies there before, and the user's files."""
        ended = _in_child(self.before, lambda: 0 * bool(self.scene.make()))
        assert ended.code == 0, f"{self.scene.name}: {ended.output}"
        users = {name: f"the user's {name}\n".encode() for name in (*USERS, *self.scene.users)}
        for name, content in users.items():
            path = self.before / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return users

    def _undisturbed(self) -> Ended:
        """Run the command as it is, and remember what it left."""
        place = self._laid("case")
        ended = self._play(place)
        assert ended.code == 0, f"{self.scene.name}, undisturbed: {ended.output}"
        self._wait_for_orphans(place)
        self._expected = _names(place)
        return ended

    def _laid(self, name: str) -> Path:
        place = self.folder / name
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.before, place, symlinks=True)
        return place

    def _play(
        self,
        place: Path,
        blow: Blow | None = None,
        watch: Callable[[int, float], None] | None = None,
    ) -> Ended:
        return _in_child(place, self.scene.do, self.scene.results, blow, watch)

    def _harmed(self, place: Path) -> list[str]:
        """Return the user's files that are not as they were."""
        return [
            name
            for name, content in self._users.items()
            if not (place / name).is_file() or (place / name).read_bytes() != content
        ]

    def _wait_for_orphans(self, place: Path) -> None:
        """Wait until no process works in a folder: workers save what they do when their master dies."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and any(_works_in(p, place) for p in psutil.process_iter()):
            time.sleep(0.05)


def _in_child(
    place: Path,
    do: Callable[[], int | None],
    results: Callable[[], dict[str, Any]] | None = None,
    blow: Blow | None = None,
    watch: Callable[[int, float], None] | None = None,
) -> Ended:
    """Do something in a forked process that works in a folder; return how it ended."""
    output, answers = place.parent / "output", place.parent / "answers"
    answers.unlink(missing_ok=True)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _child(place, do, results, blow, output, answers)
    code = _waited(pid, watch)
    answer = (
        json.loads(answers.read_text()) if answers.exists() else {"events": [], "results": None}
    )
    return Ended(code, output.read_text("utf-8", "replace"), answer["events"], answer["results"])


def _child(
    place: Path,
    do: Callable[[], int | None],
    results: Callable[[], dict[str, Any]] | None,
    blow: Blow | None,
    output: Path,
    answers: Path,
) -> None:
    """Be the command; never returns."""
    code = 1
    try:
        with output.open("wb") as file:
            os.dup2(file.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        os.chdir(place)
        os.environ["ARCHWRIGHT_CACHE"] = str(place / "cache")
        disk = Disk(place, blow)
        code = do() or 0
        if not (blow and blow.error):
            disk.meet("end", place)  # all is done, but nobody knows
        events = list(disk.events)
        disk.blow = None
        found = results() if results and code == 0 else None
        answers.write_text(json.dumps({"events": events, "results": found}))
    except BaseException:
        print(traceback.format_exc(), file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


def _waited(pid: int, watch: Callable[[int, float], None] | None) -> int:
    started = time.monotonic()
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - started
        if watch:
            watch(pid, seconds)
        if seconds > PATIENCE:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return 99
        time.sleep(0.005)


def _unclear(ended: Ended) -> list[str]:
    """Say what is wrong with the answer to an error: it is none, or one line or few that name the file."""
    if ended.code not in (0, 2):
        last = ended.output.strip().splitlines()[-1:] or [""]
        return [f"exit code {ended.code}: {last[0][:200]}"]
    lines = [line for line in ended.output.splitlines() if ": warning: " not in line]
    found = []
    if ended.code == 2 and not 1 <= len(lines) <= LINES:
        found.append(f"{len(lines)} lines: {ended.output[-300:]}")
    if any(not line.startswith("archwright: ") for line in lines):
        found.append(f"no line of ours: {ended.output[-300:]}")
    if any("the system: " in line for line in lines):
        found.append(f"names no file: {lines[0]}")
    if problem := unreadable(ended.output):
        found.append(f"{problem}: {ended.output[-300:]}")
    return found


def _difference(plain: Ended, again: Ended) -> str:
    keys = {**plain.results, **again.results}
    return ", ".join(k for k in keys if plain.results.get(k) != again.results.get(k))[:300]


def _names(place: Path) -> set[str]:
    """Return the files and folders of a place, locks apart."""
    found = (path for path in place.rglob("*") if not is_lock(path))
    return {str(path.relative_to(place)) for path in found}


def _works_in(process: psutil.Process, place: Path) -> bool:
    try:
        return process.pid != os.getpid() and process.cwd() == str(place.resolve())
    except psutil.Error:
        return False
