"""Importing is not held up by looking for garbage, which is looked for again afterwards."""

import gc
from collections.abc import Iterator

import pytest

from archwright.machine.loading import loading


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_garbage_is_let_lie_while_modules_are_loaded() -> None:
    assert gc.isenabled()
    with loading():
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() > len(kept)
    assert not any(found is kept for found in gc.get_objects())


def test_it_is_looked_for_again_where_an_import_fails() -> None:
    with pytest.raises(ImportError), loading():
        raise ImportError("no such module")
    assert gc.isenabled()
