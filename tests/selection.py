"""Which tests `make test-fast`, `make test` and `make test-all` run.

- `make test-fast`: the quick tests. A test is quick unless it is marked `slow` or `release` or needs a browser. Two
  cases of a parametrized test are quick, or `sampled(fast=n)` of them; they are drawn once.
- `make test`: the quick tests, guards and a slice of the rest, `SECONDS` of processor time in all. Guards are the
  cheapest tests that notice the planted faults. Rotation r runs slice r modulo the number of slices.
- `make test-all`: every test, those marked `release` too.

A slice takes cases of a file that have the same parameters together, because they share fixtures, and so all tests of
a file without parameters. Those units are dealt one by one to the slice with the least work.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from tests.durations import Durations

T = TypeVar("T")

MARKS = (
    "slow: left out by make test-fast",
    "release: run by make test-all only",
    "sampled(fast): number of cases of a test in make test-fast",
    "sequence: cases that build on each other, which run all or none",
)
FAST = 2
"""Number of quick cases of a parametrized test without `sampled`."""
SECONDS = 900
"""Processor time of `make test`, by recorded durations."""
SLICE = 300
"""Least processor time of a slice, however long quick tests and guards take."""
GUARD = 5
"""Longest recorded time of a guard in seconds."""
GUARDS = Path(__file__).parent / "planted" / "noticed.json"
"""Names of planted faults -> ids of the tests that noticed them, written by `make mutants`."""


def declare(config: pytest.Config) -> None:
    """Register the marks."""
    for mark in MARKS:
        config.addinivalue_line("markers", mark)


def apply(
    items: list[pytest.Item], durations: Durations, rotation: int | None
) -> list[pytest.Item]:
    """Mark cases beyond the quick ones as slow, and keep the tests of a rotation. Return the deselected tests."""
    families = defaultdict(list)
    sequences: set[str] = set()
    for item in items:
        test, parametrized, _ = item.nodeid.partition("[")
        if parametrized:
            families[test].append(item)
        if "chromium" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
    for cases in families.values():
        mark = cases[0].get_closest_marker("sampled")
        if cases[0].get_closest_marker("sequence"):
            sequences.add(cases[0].nodeid.partition("[")[0])
            for case in cases:
                case.add_marker("slow")
            continue
        fast = drawn(cases, mark.kwargs.get("fast", FAST) if mark else FAST)
        for case in set(cases).difference(fast):
            case.add_marker("slow")

    selected = {item.nodeid for item in items}
    if rotation is not None:
        pool = [item for item in items if not item.get_closest_marker("release")]
        quick = {item.nodeid for item in pool if not item.get_closest_marker("slow")}
        tests = [item.nodeid for item in pool]
        selected = select(quick, tests, durations, noticed(), rotation, sequences)
    deselected = [item for item in items if item.nodeid not in selected]
    kept = [item for item in items if item.nodeid in selected]
    # The longest files first, because each runs in one process.
    seconds = durations.of_files(item.nodeid for item in kept)
    items[:] = sorted(kept, key=lambda item: -seconds[item.nodeid.partition("::")[0]])
    return deselected


def noticed() -> dict[str, list[str]]:
    """Return names of planted faults and ids of the tests that noticed them."""
    return json.loads(GUARDS.read_text("utf-8")) if GUARDS.exists() else {}


def select(
    quick: set[str],
    pool: Sequence[str],
    durations: Durations,
    guards: Mapping[str, Sequence[str]],
    rotation: int,
    sequences: Collection[str] = (),
) -> set[str]:
    """Return the ids of a rotation: the quick tests, guards and a slice of the rest of the pool.

    `sequences` are tests with cases that stay together, and are no guards.
    """
    alone = {test for test in pool if test.partition("[")[0] not in sequences}
    selected = quick | guarding(guards, quick, alone, durations)
    rest = [test for test in pool if test not in selected]
    left = max(SLICE, SECONDS - sum(durations.of_files(selected).values()))
    number = 1 + int(sum(durations.of_files(rest).values()) / left)
    return selected | slices(rest, durations, number, sequences)[rotation % number]


def guarding(
    guards: Mapping[str, Sequence[str]], quick: set[str], pool: set[str], durations: Durations
) -> set[str]:
    """Return the cheapest test for each planted fault that no quick test notices."""
    found: set[str] = set()
    for tests in guards.values():
        if not (quick | found).intersection(tests):
            usable = [test for test in tests if test in pool and durations.of(test) <= GUARD]
            found.update(sorted(usable, key=lambda test: (durations.of(test), test))[:1])
    return found


def slices(
    tests: Iterable[str], durations: Durations, number: int, sequences: Collection[str] = ()
) -> list[set[str]]:
    """Deal tests into slices of about the same time, each with some cases of each long family."""
    units: dict[tuple[str, str], list[str]] = defaultdict(list)
    for test in sorted(tests):
        name, _, parameters = test.partition("[")
        units[test.partition("::")[0], "" if name in sequences else parameters].append(test)
    families: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    for unit in units.values():
        families[tuple(dict.fromkeys(test.partition("[")[0] for test in unit))].append(unit)
    dealt: list[set[str]] = [set() for _ in range(number)]
    seconds = [0.0] * number
    paid = set()
    for functions, cases in sorted(
        families.items(), key=lambda family: -seconds_of(family[0], durations)
    ):
        file = functions[0].partition("::")[0]
        counts = [0] * number
        for unit in Random(0).sample(cases, len(cases)):
            i = min(range(number), key=lambda i: (counts[i], seconds[i]))
            counts[i] += 1
            seconds[i] += seconds_of(unit, durations)
            if (file, i) not in paid:
                paid.add((file, i))
                seconds[i] += durations.shared(file)
            dealt[i].update(unit)
    return dealt


def seconds_of(tests: Iterable[str], durations: Durations) -> float:
    """Return the seconds of tests without shared fixtures."""
    return sum(map(durations.of, tests))


def left_out(path: Path, marks: str | None) -> bool:
    """True if a file has only slow tests, and these are deselected."""
    if "not slow" not in (marks or "") or not path.name.startswith("test_"):
        return False
    return "\npytestmark = pytest.mark.slow\n" in path.read_text(encoding="utf-8")


def drawn(cases: Sequence[T], number: int) -> Sequence[T]:
    """Draw a number of cases, in their order. Every second or fourth case may have something in common."""
    if number >= len(cases):
        return cases
    return [cases[i] for i in sorted(Random(0).sample(range(len(cases)), number))]
