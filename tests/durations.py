"""Recorded durations of tests, in `tests/durations.json`: file -> test -> mean seconds of a case.

Fixtures that several tests share are recorded by file under the empty name, because a slice of a file needs them
whole. `pytest --record-durations` renews the files that it ran, `make test-all ARGS=--record-durations` all of them, on
a machine without other work.
"""

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).with_name("durations.json")
LEAST = 0.05
"""Shortest duration that is kept, in seconds."""
SHORT = 0.02
"""Seconds of a test below that."""
UNKNOWN = 0.2
"""Seconds of a test in a file without records: the mean of all tests."""
SHARED = "seconds of shared fixtures"


class Durations:
    """Seconds of tests and of shared fixtures."""

    def __init__(self, files: Mapping[str, Mapping[str, float]]) -> None:
        self.files = files

    @classmethod
    def read(cls) -> "Durations":
        return cls(json.loads(FILE.read_text("utf-8")) if FILE.exists() else {})

    def of(self, test: str) -> float:
        """Return the seconds of a test or case by its id."""
        file, _, name = test.partition("[")[0].partition("::")
        tests = self.files.get(file)
        return UNKNOWN if tests is None else tests.get(name, SHORT)

    def shared(self, file: str) -> float:
        """Return the seconds of the shared fixtures of a file."""
        return self.files.get(file, {}).get("", 0.0)

    def of_files(self, tests: Iterable[str]) -> dict[str, float]:
        """Return the seconds of tests by file, shared fixtures included."""
        seconds: dict[str, float] = {}
        for test in tests:
            file = test.partition("::")[0]
            seconds[file] = seconds.get(file, self.shared(file)) + self.of(test)
        return seconds


class Recorder:
    """A pytest plugin that records durations; workers send them with their reports."""

    def __init__(self, config: pytest.Config) -> None:
        self.is_worker = hasattr(config, "workerinput")
        self.seconds: dict[str, float] = defaultdict(float)
        self.shared: dict[str, float] = defaultdict(float)
        self.item: pytest.Item | None = None

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.item = item

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[Any]:
        item, self.item = self.item, None
        start = time.perf_counter()
        try:
            return (yield)
        finally:
            if item and fixturedef.scope != "function" and not hasattr(request, "param"):
                item.user_properties.append((SHARED, time.perf_counter() - start))
            self.item = item

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        shared = sum(value for name, value in report.user_properties if name == SHARED)
        if report.when == "setup":
            self.shared[report.nodeid.partition("::")[0]] += shared
            self.seconds[report.nodeid] -= shared
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        if not self.is_worker:
            write({**Durations.read().files, **means(self.seconds, self.shared)})


def means(seconds: Mapping[str, float], shared: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the mean seconds of a case by file and test."""
    cases: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for test, value in seconds.items():
        file, _, name = test.partition("[")[0].partition("::")
        cases[file][name].append(value)
    for file, value in shared.items():
        cases[file][""].append(value)
    return {
        file: {name: sum(values) / len(values) for name, values in tests.items()}
        for file, tests in cases.items()
    }


def write(files: Mapping[str, Mapping[str, float]]) -> None:
    """Write the durations that matter of files that exist."""
    kept = {
        file: {name: float(f"{s:.2g}") for name, s in sorted(tests.items()) if s >= LEAST}
        for file, tests in sorted(files.items())
        if (FILE.parents[1] / file).exists()
    }
    FILE.write_text(json.dumps(kept, indent=0) + "\n", "utf-8")
