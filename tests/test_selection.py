"""Marks choose what runs: a sample of each long family stays in `make test-fast` and `make test`."""

import pytest

pytest_plugins = ["pytester"]

CASES = """
import pytest

@pytest.mark.sampled(fast=2, full=5)
@pytest.mark.parametrize("i", range(10))
def test_family(i): ...

def test_quick(): ...

@pytest.mark.slow
def test_long(): ...
"""


@pytest.mark.parametrize(
    ("chosen", "passed"),
    [("not slow and not release", 3), ("not release", 7), ("release", 5), ("slow or not slow", 12)],
)
def test_each_verb_takes_its_part(chosen: str, passed: int, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CASES)
    pytester.makeconftest(
        "from tests import selection\n"
        "def pytest_configure(config): selection.declare(config)\n"
        "def pytest_collection_modifyitems(items): selection.apply(items)\n"
    )
    found = pytester.inline_run("-m", chosen, "--strict-markers", "-p", "no:cacheprovider")
    assert len(found.listoutcomes()[0]) == passed
