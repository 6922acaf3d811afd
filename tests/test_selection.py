"""Marks choose what runs: a sample of each long family stays in `make test-fast` and `make test`."""

from pathlib import Path

import pytest

from tests import selection

pytest_plugins = ["pytester"]

CASES = """
import pytest

@pytest.mark.sampled(fast=2, full=5)
@pytest.mark.parametrize("i", range(10))
def test_family(i): ...

@pytest.mark.parametrize("i", range(10))
def test_all(i): ...

def test_quick(): ...

@pytest.mark.slow
def test_long(): ...
"""


def test_a_file_of_slow_tests_is_imported_only_where_they_run(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text("import pytest\n\npytestmark = pytest.mark.slow\n")
    assert selection.left_out(file, "not slow and not release")
    assert not selection.left_out(file, "not release")
    file.write_text("import pytest\n")
    assert not selection.left_out(file, "not slow and not release")


@pytest.mark.parametrize(
    ("chosen", "passed"),
    [
        ("not slow and not release", 6),
        ("not release", 17),
        ("release", 5),
        ("slow or not slow", 22),
    ],
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
