"""A sample of `make laws-scale`: random compositions under random plans of two processes."""

from pathlib import Path

import pytest

from tests.scale.laws import drawn, failures, verdicts


@pytest.mark.release
def test_processes_train_random_compositions_as_one_does(tmp_path: Path) -> None:
    given = drawn(5, seed=1, sizes=(2,))
    assert len(given.trials) >= 3
    assert not "\n".join(failures(verdicts(given.trials), tmp_path))
