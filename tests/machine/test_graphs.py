"""A kind of layer is one graph without a break, with every mask; an evaluation leaves flex compiled."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.machine.layer_graphs import LAYERS
from tests.tiny import surroundings

BATCHES = ("sdpa, texts", "sdpa, documents", "flex, texts", "flex, documents")


def counted(*names: str) -> dict[str, Any]:
    """Without jaxtyping's checks, which the tests' conftest adds."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.machine.layer_graphs", *names],
        capture_output=True,
        text=True,
        check=False,
        env=surroundings(),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_layers_of_two_kinds_are_two_graphs_and_flex_stays_compiled() -> None:
    found = counted("two_kinds", "--evaluation")
    assert found["two_kinds"] == {batch: [2] for batch in BATCHES}
    assert found["evaluation"] == {"training": 1, "evaluation": 1, "after": 0}


@pytest.mark.slow
def test_a_kind_of_layer_is_one_graph_with_every_mask() -> None:
    names = [name for name in LAYERS if name != "two_kinds"]
    assert counted(*names) == {name: {batch: [1] for batch in BATCHES} for name in names}
