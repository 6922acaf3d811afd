"""Which tests run when: `make test-fast`, `make test` and `make test-slow` take them by two marks.

- `slow` (over half a second by itself, or with the cases beside it over three): left out by
  `make test-fast`, as are tests in a browser.
- `release` (cases beyond a sample): left out by `make test` as well, and run by `make test-slow`.
- `sampled(fast=a, full=b)` gives these marks to the cases of one parametrized test beyond `a` and `b`,
  drawn, and the same ones each time. `make test-fast` keeps three where no number is given, `make test` all.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

T = TypeVar("T")

MARKS = (
    "slow: left out by make test-fast",
    "release: left out by make test, run by make test-slow",
    "sampled(fast, full): how many cases of a test make test-fast and make test keep",
)


FAST = 3
"""Cases that `make test-fast` keeps where a test does not ask for another number."""


def declare(config: pytest.Config) -> None:
    """Make the marks known."""
    for mark in MARKS:
        config.addinivalue_line("markers", mark)


def apply(items: list[pytest.Item]) -> None:
    """Mark the cases of sampled tests, and put files with slow tests first, so that none is left at the end."""
    long = {item.path for item in items if item.get_closest_marker("slow")}
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        test, parametrized, _ = item.nodeid.partition("[")
        if parametrized:
            families.setdefault(test, []).append(item)
    for cases in families.values():
        mark = cases[0].get_closest_marker("sampled")
        numbers = mark.kwargs if mark else {}
        full = drawn(cases, numbers.get("full"))
        fast = set(drawn(full, numbers.get("fast", FAST)))
        for case in set(cases).difference(full):
            case.add_marker("release")
        for case in set(full).difference(fast):
            case.add_marker("slow")
    for item in items:
        if "chromium" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
    items.sort(key=lambda item: item.path not in long)


def left_out(path: Path, marks: str | None) -> bool:
    """Whether a file of slow tests need not even be imported."""
    if "not slow" not in (marks or "") or not path.name.startswith("test_"):
        return False
    return "\npytestmark = pytest.mark.slow\n" in path.read_text(encoding="utf-8")


def drawn(cases: Sequence[T], number: int | None) -> Sequence[T]:
    """Return so many of the cases, in their order; all of them without a number.

    They are drawn, as every second or fourth case may have something in common.
    """
    if number is None or number >= len(cases):
        return cases
    return [cases[i] for i in sorted(Random(0).sample(range(len(cases)), number))]
