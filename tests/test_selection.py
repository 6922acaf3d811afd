"""Marks, recorded durations and planted faults decide which tests run."""

import json

import pytest

from tests import durations, selection
from tests.durations import Durations

pytest_plugins = ["pytester"]

CASES = """
import pytest

@pytest.mark.sampled(fast=3)
@pytest.mark.parametrize("i", range(10))
def test_family(i): ...

@pytest.mark.parametrize("i", range(10))
def test_all(i): ...

def test_quick(): ...

@pytest.mark.slow
def test_long(): ...

@pytest.mark.release
@pytest.mark.slow
def test_compiler(): ...
"""
HOOKS = """
from tests import selection
from tests.durations import Durations

def pytest_configure(config): selection.declare(config)

def pytest_collection_modifyitems(config, items):
    config.hook.pytest_deselected(items=selection.apply(items, Durations({}), ROTATION))
"""
FAMILY = [f"tests/test_a.py::test_family[{i}]" for i in range(40)]
OTHERS = [f"tests/test_a.py::test_{i}" for i in range(5)]
SECONDS = Durations(
    {"tests/test_a.py": {"": 2, "test_family": 60} | {f"test_{i}": 9 for i in range(5)}}
)


@pytest.mark.parametrize(
    ("words", "rotation", "passed"),
    [(("-m", "not slow and not release"), None, 6), ((), 0, 22), ((), None, 23)],
)
def test_each_verb_takes_its_part(
    words: tuple[str, ...], rotation: int | None, passed: int, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(CASES)
    pytester.makeconftest(HOOKS.replace("ROTATION", str(rotation)))
    result = pytester.inline_run(*words, "--strict-markers", "-p", "no:cacheprovider")
    assert len(result.listoutcomes()[0]) == passed


def test_rotations_run_every_case_and_some_of_each_family() -> None:
    quick = {FAMILY[3]}
    rotations = [selection.select(quick, FAMILY + OTHERS, SECONDS, {}, i) for i in range(4)]
    again = selection.select(quick, FAMILY[::-1] + OTHERS, SECONDS, {}, 1)
    assert rotations[0] != rotations[1] == again != rotations[2]
    assert set.union(*rotations) == {*FAMILY, *OTHERS}
    for selected in rotations:
        assert quick <= selected
        assert len(selected.intersection(FAMILY)) > 8
        seconds = sum(SECONDS.of_files(selected).values())
        assert 600 < seconds < selection.SECONDS


def test_the_cheapest_test_that_notices_a_fault_always_runs() -> None:
    seconds = Durations(
        {"tests/test_a.py": {"test_0": 0.5, "test_1": 2, "test_2": 100, "test_3": 1}}
    )
    guards = {
        "quick": [OTHERS[0], OTHERS[4]],
        "cheap": [OTHERS[1], OTHERS[3], OTHERS[2]],
        "expensive": [OTHERS[2]],
        "gone": ["tests/test_b.py::test"],
    }
    found = selection.guarding(guards, {OTHERS[4]}, set(OTHERS), seconds)
    assert found == {OTHERS[3]}


def test_durations_are_recorded_with_fixtures_of_files_apart(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = pytester.path / "tests" / "durations.json"
    monkeypatch.setattr(durations, "FILE", file)
    file.parent.mkdir()
    monkeypatch.setattr(durations, "LEAST", 0.0)
    pytester.makeconftest(
        "from tests.durations import Recorder\n"
        "def pytest_configure(config): config.pluginmanager.register(Recorder(config))\n"
    )
    pytester.makepyfile(
        test_it="""
        import time
        import pytest

        @pytest.fixture(scope="module")
        def run():
            time.sleep(0.5)

        @pytest.mark.parametrize("i", range(2))
        def test(run, i):
            time.sleep(0.1)
        """
    )
    pytester.inline_run("-p", "no:cacheprovider")
    recorded = json.loads(file.read_text("utf-8"))["test_it.py"]
    assert recorded[""] >= 0.5
    assert 0.1 <= recorded["test"] < 0.5


def test_a_sequence_stays_in_one_slice() -> None:
    dealt = selection.slices([*FAMILY, *OTHERS], SECONDS, 4, ["tests/test_a.py::test_family"])
    assert sorted(len(part & set(FAMILY)) for part in dealt) == [0, 0, 0, 40]
