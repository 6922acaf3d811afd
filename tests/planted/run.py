"""`make mutants`: plant every fault of the list in a copy of the checkout, and see which tests notice.

Each fault is tried against the tests that the list names; where these pass, against all tests of its room. Ids of the
tests that notice a fault are kept in noticed.json: `make test` always runs the cheapest of them. `--count` counts the
faults of that file that the selection of `make test` notices, and runs no test.
"""

import argparse
import json
import multiprocessing
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.planted.faults import ROOT, Fault, read_faults
from tests.selection import GUARDS, noticed

LEAST = 0.97
"""Share of the faults that tests of their own room must notice."""
SECONDS = 600
"""Longest that tests may take on one fault; what does not end is not noticed."""
COPIED = ("archwright", "tests", "docs", "bench")
LIBRARIES = ["torch", "numpy", "scipy.stats", "hypothesis", "jaxtyping", "beartype", "tokenizers"]
"""What is imported once, for all processes that run tests: it takes longer than most of them."""
FAILURES = 3
"""Number of failing tests after which a fault is settled."""
ENDED = 100
"""Added to pytest's exit code, which a process that dies by itself cannot return."""
QUIET = ("--no-header", "-p", "no:cacheprovider")
PRELOADED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
"""hypothesis, which is pytest's plugin, too, is there before it is asked for."""
NAMED, ROOM, NEVER = "named test", "other test of the room", "NOT NOTICED"


class Outcome(NamedTuple):
    """What came of one fault."""

    fault: Fault
    noticed: str
    seconds: float
    tests: tuple[str, ...] = ()


def main(words: Sequence[str]) -> int:
    """Try faults, print a table; 0 where enough were noticed."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="faults or rooms, by name")
    parser.add_argument(
        "--unchecked", action="store_true", help="do not try the tests without faults first"
    )
    parser.add_argument(
        "--count",
        action="store_true",
        help="count the faults that `make test` notices, by the record",
    )
    parser.add_argument("--rotation", type=int, default=0, metavar="N", help="with --count")
    parser.add_argument("--record", type=Path, default=GUARDS, help="file of the tests that notice")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    options = parser.parse_args(words)
    if options.count:
        return count(options.rotation)
    faults = read_faults()
    if options.only:
        faults = [f for f in faults if f.name in options.only or f.room in options.only]
    if not faults:
        parser.error(f"no fault and no room is called {', '.join(options.only)}")
    os.environ["OMP_NUM_THREADS"] = "1"
    jobs = max(1, min(options.jobs, len(faults)))
    outcomes = try_all(faults, jobs, check=not options.unchecked)
    record(outcomes, options.record)
    return report(sorted(outcomes, key=lambda outcome: faults.index(outcome.fault)))


def try_all(faults: Sequence[Fault], jobs: int, *, check: bool) -> list[Outcome]:
    """Try every fault, several at once, each in a copy where no other one is planted."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        first = copy(ROOT, Path(folder) / "0")
        if check:
            check_without(faults, first, jobs)
        for i in range(jobs):
            copies.put(first if i == 0 else copy(first, Path(folder) / str(i)))

        def attempt(fault: Fault) -> Outcome:
            place = copies.get()
            try:
                return try_one(fault, place)
            finally:
                copies.put(place)

        with ThreadPoolExecutor(jobs) as pool, bar() as progress:
            task = progress.add_task("faults", total=len(faults))
            outcomes = []
            try:
                for done in as_completed([pool.submit(attempt, fault) for fault in faults]):
                    outcomes.append(done.result())
                    if outcomes[-1].noticed == NEVER:
                        progress.console.print(f"{NEVER}: {outcomes[-1].fault.name}")
                    progress.advance(task)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return outcomes


def try_one(fault: Fault, place: Path) -> Outcome:
    """Return which tests notice a fault that is planted in a copy."""
    start = time.perf_counter()
    with planted(fault, place):
        for tests, noticed in ((fault.tests, NAMED), (fault.tests_of_room, ROOM)):
            if failed := failing(tests, place):
                return Outcome(fault, noticed, time.perf_counter() - start, tuple(failed))
    return Outcome(fault, NEVER, time.perf_counter() - start)


def copy(source: Path, target: Path) -> Path:
    """Copy what tests need of a checkout; compiled files stay valid."""
    target.mkdir()
    for file in source.iterdir():
        if file.is_file():
            shutil.copy2(file, target)
        elif file.name in COPIED:
            shutil.copytree(file, target / file.name)
    return target


def check_without(faults: Sequence[Fault], place: Path, jobs: int) -> None:
    """Make sure that the named tests pass where nothing is planted."""
    tests = list(dict.fromkeys(test for fault in faults for test in fault.tests))
    print(f"{len(faults)} faults; first {len(tests)} tests without any")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *QUIET, *tests, "-n", str(jobs)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{done.stderr}\nThese tests fail without any fault.")


@contextmanager
def planted(fault: Fault, place: Path) -> Iterator[None]:
    """Have a fault in a copy. The old file comes back with its old time, for which it was compiled."""
    file = place / fault.file
    before, times = file.read_text("utf-8"), file.stat()
    file.write_text(fault.planted(before), "utf-8")
    try:
        yield
    finally:
        file.write_text(before, "utf-8")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def failing(tests: Sequence[str], place: Path) -> list[str]:
    """Return ids of the first tests that fail in a copy; none if the tests do not end."""
    log, failed = place / "pytest.log", place / "failed.txt"
    failed.write_text("")
    process = processes().Process(
        target=run_tests,
        args=([f"--maxfail={FAILURES}", *QUIET, *PRELOADED, *tests], place, log, failed),
    )
    process.start()
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
        return []
    code = (process.exitcode or 0) - ENDED
    if code not in (0, 1, 2):  # 2: a test that cannot even be imported
        raise SystemExit(f"{log.read_text()}\nThe tests could not be run: {', '.join(tests)}")
    return failed.read_text("utf-8").splitlines() if code else []


class Failures:
    """A pytest plugin that writes ids of failing tests, and of files that cannot be imported."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(f"{report.nodeid}\n")

    pytest_collectreport = pytest_runtest_logreport


def processes() -> Any:
    """Return what starts processes that have the libraries already, and nothing of this package."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    return context


def run_tests(words: Sequence[str], place: Path, log: Path, failed: Path) -> None:
    """Run pytest in a copy, whose package and tests count, and exit with its code."""
    import pytest

    os.chdir(place)
    sys.path.insert(0, str(place))
    for name in [name for name in sys.modules if name.partition(".")[0] in COPIED]:
        del sys.modules[name]
    os.environ["PYTHONPATH"] = str(place)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        code = int(pytest.main(list(words), plugins=[Failures(failed)]))
        os._exit(ENDED + code)  # what a library still does at the end of a process is no test


def record(outcomes: Sequence[Outcome], file: Path) -> None:
    """Keep ids of the tests that noticed each fault; faults that left the list are dropped."""
    names = {fault.name for fault in read_faults()}
    found = noticed() | {outcome.fault.name: list(outcome.tests) for outcome in outcomes}
    kept = {name: found[name] for name in sorted(found) if name in names}
    file.write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n", "utf-8")


def count(rotation: int) -> int:
    """Print how many of the recorded faults the selection of `make test` notices."""
    import pytest

    class Selected:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            self.ids = {item.nodeid for item in session.items}

    selected, faults = Selected(), noticed()
    pytest.main(["--collect-only", "-qqq", f"--rotation={rotation}"], plugins=[selected])
    missed = [name for name, tests in faults.items() if not selected.ids.intersection(tests)]
    print(f"{len(faults) - len(missed)} of {len(faults)} planted faults are noticed by `make test`")
    print(*(f"not in rotation {rotation}: {name}" for name in missed), sep="\n")
    return 0


def bar() -> Progress:
    """Return a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn())


def report(outcomes: Sequence[Outcome]) -> int:
    """Print what came of each fault and of each room; return the exit code."""
    for fault, found, seconds, _ in outcomes:
        print(f"{fault.room:12} {found:23} {seconds:5.0f} s  {fault.name}: {fault.why}")
    print()
    for room in dict.fromkeys(outcome.fault.room for outcome in outcomes):
        found = [outcome.noticed for outcome in outcomes if outcome.fault.room == room]
        print(
            f"{room:12} {len(found):3} faults, noticed by the named test {found.count(NAMED):3}, "
            f"by another of the room {found.count(ROOM):2}, not {found.count(NEVER):2}"
        )
    missed = [outcome.fault for outcome in outcomes if outcome.noticed == NEVER]
    share = 1 - len(missed) / len(outcomes)
    print(f"\n{len(outcomes) - len(missed)} of {len(outcomes)} noticed: {share:.1%}")
    for fault in missed:
        print(f"not noticed: {fault.name} ({fault.file}): {fault.why}")
    return 0 if share >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
