"""One case: a valid folder, one file of it changed, read as the command line reads it, and judged."""

import contextlib
import importlib.util
import io
import os
import resource
import shutil
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from archwright.cli import main
from archwright.cli.main import VERBS
from tests.fuzz.mutations import mutated
from tests.fuzz.seeds import ROOT_MARK, Seed
from tests.fuzz.targets import Target

CPU_SECONDS, WALL_SECONDS = 5.0, 40.0
"""What a case may take; a busy machine stretches the second alone."""
GROWTH = 1 << 30
"""Bytes that a case may add to a process at its peak."""
LINES, LETTERS = 24, 1000
"""How long an answer may be: in lines, and each of them."""
AWAY = 0.1
"""Share of the cases in which a file is missing or another one, where that is tried."""
BAD = ("traceback", "slow", "big", "silent", "stuck", "unreadable")
"""Ends that no case may come to."""


@dataclass(frozen=True)
class Case:
    """A changed folder: what was changed, and whether its container was kept."""

    number: int
    seed: Seed
    path: str
    content: bytes | None
    """None: the file is missing."""
    kept: bool


@dataclass(frozen=True)
class Outcome:
    """How a case ended: "same", "other", "refused", or one of BAD; and whether the last check was reached."""

    number: int
    end: str
    kept: bool
    reached: bool = False
    text: str = ""


class Reader:
    """Reads cases of a target in this process."""

    def __init__(self, target: Target, seeds: list[Seed], folder: Path) -> None:
        self.target, self.seeds, self.folder = target, seeds, folder
        self._words = tuple(target.words())
        self._reached = 0
        self._answer: object = None
        self._known: dict[str, set[object]] = {}
        _watch(target.last, self._count)

    def case(self, number: int, random_seed: int) -> Case:
        """Return a case by its number, always the same."""
        dice = Random(f"{self.target.name}/{random_seed}/{number}")
        seed = self.seeds[seed_of(number, len(self.seeds))]
        path = dice.choice(sorted(seed.kinds))
        place = self._place(number)
        before = seed.files[path].replace(ROOT_MARK, str(place).encode())
        if self.target.takes_away and dice.random() < AWAY:
            return Case(number, seed, path, self._another(seed, path, dice), False)
        content, kept = mutated(before, seed.kinds[path], dice, self._words)
        return Case(number, seed, path, content, kept)

    def _another(self, seed: Seed, path: str, dice: Random) -> bytes | None:
        """Return what stands in place of a file that was mislaid: nothing, or another one of its kind."""
        others = [p for p, kind in seed.kinds.items() if p != path and kind == seed.kinds[path]]
        return seed.files[dice.choice(others)] if others and dice.random() < 0.5 else None

    def lay(self, case: Case, place: Path) -> None:
        """Write a case's folder."""
        _lay(case.seed, place)
        if case.content is None:
            (place / case.path).unlink()
        else:
            (place / case.path).write_bytes(case.content)
        with contextlib.chdir(place):
            self.target.amend(case.path)

    def judge(self, case: Case) -> Outcome:
        """Read a case and say how that ended."""
        known = self.known(case.seed)
        place = self._place(case.number)
        self.lay(case, place)
        self._reached = 0
        started = time.process_time()
        try:
            with self._in(place):
                code, said, failure = self._read(case.seed)
            seconds = time.process_time() - started
        finally:
            shutil.rmtree(place, ignore_errors=True)
        end, text = self._end(code, said, failure, known)
        if seconds > CPU_SECONDS and end != "big":
            end, text = "slow", f"{seconds:.1f} s of CPU; {text}"
        return Outcome(case.number, end, case.kept, bool(self._reached), text)

    def _end(
        self, code: int, said: str, failure: BaseException | None, known: set[object]
    ) -> tuple[str, str]:
        if failure is not None:
            told = "".join(traceback.format_exception(failure))
            big = isinstance(failure, MemoryError) or "can't allocate memory" in told
            return "big" if big else "traceback", told
        if problem := unreadable(said):
            return "unreadable", f"{problem}: {said!r}"
        if code == 2:
            return ("stuck" if self.target.heals else "refused"), said
        if code != 0:
            return "traceback", f"exit code {code}: {said}"
        if self._answer in known:
            return "same", said
        return ("silent" if self.target.hashed else "other"), said

    def known(self, seed: Seed) -> set[object]:
        """Return what a valid folder may be read as."""
        if seed.name not in self._known:
            self._known[seed.name] = {
                self._valid(seed, change) for change in (None, *self.target.also)
            }
        return self._known[seed.name]

    def _valid(self, seed: Seed, change: Callable[[], None] | None) -> object:
        place = self._place(0).with_name("valid")
        _lay(seed, place)
        try:
            with self._in(place):
                if change:
                    change()
                code, said, failure = self._read(seed)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        if code or failure:
            told = "".join(traceback.format_exception(failure)) if failure else said
            raise AssertionError(f"{self.target.name}, {seed.name}: not read though valid: {told}")
        return self._answer

    @contextlib.contextmanager
    def _in(self, place: Path) -> Iterator[None]:
        os.environ["ARCHWRIGHT_CACHE"] = str(place / "cache")
        with contextlib.chdir(place):
            yield

    def _read(self, seed: Seed) -> tuple[int, str, BaseException | None]:
        """Return the exit code, what was said on standard error, and what came through in spite of that."""
        self._answer, said = None, io.StringIO()

        def read() -> None:
            self._answer = self.target.read(seed)

        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                return as_verb(read), said.getvalue(), None
        except BaseException as error:  # also what is no Exception, as Rust's panics
            return 1, said.getvalue(), error

    def _place(self, number: int) -> Path:
        """Return a folder of its own for each case: what is remembered of a file is then of that case."""
        return self.folder / f"case-{number:07}"

    def _count(self) -> None:
        self._reached += 1


def as_verb(do: Callable[[], object]) -> int:
    """Do something as a verb of the command line does, so that errors are answered as there; return the exit
    code."""

    def run(words: Any) -> int:
        do()
        return 0

    module: Any = types.ModuleType("archwright.cli.fuzz_verb")
    module.run = run
    sys.modules[module.__name__] = module
    VERBS["fuzz"] = ""
    return main(["fuzz"])


def seed_of(number: int, seeds: int) -> int:
    """Return which of the seeds a case changes: ten cases in a row share one, which is then read less often."""
    return number // 10 % seeds


def unreadable(said: str) -> str:
    """Say what is wrong with lines for a terminal, if anything is."""
    lines = said.splitlines() if "\r" not in said else said.split("\n")
    if any(not c.isprintable() for c in said.replace("\n", "")):
        return "control characters"
    if len(lines) > LINES:
        return f"{len(lines)} lines"
    longest = max(map(len, lines), default=0)
    return f"a line of {longest} letters" if longest > LETTERS else ""


def peak() -> int:
    """Return the most bytes that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _lay(seed: Seed, place: Path) -> None:
    for name, content in seed.files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.replace(ROOT_MARK, str(place).encode()))


def _watch(names: tuple[str, ...], count: Callable[[], None]) -> None:
    """Call `count` whenever the first of the functions that is there is entered, wherever it was imported to."""
    for name in names:
        room, _, path = name.partition(":")
        *owners, last = path.split(".")
        if importlib.util.find_spec(room) is None:
            continue
        holder: Any = importlib.import_module(room)
        for owner in owners:
            holder = getattr(holder, owner, None)
        plain = getattr(holder, last, None)
        if plain is None:
            continue
        counted = _counting(plain, count)
        setattr(holder, last, counted)
        for module in [m for n, m in sys.modules.items() if n.startswith("archwright")]:
            for key, value in list(vars(module).items()):
                if value is plain:
                    setattr(module, key, counted)
        return
    raise AssertionError(f"{' or '.join(names)} is not there: tests/fuzz/targets.py must name it")


def _counting(plain: Any, count: Callable[[], None]) -> Any:
    def counted(*positional: Any, **named: Any) -> Any:
        count()
        return plain(*positional, **named)

    return counted
