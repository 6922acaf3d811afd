"""A training step makes the host wait for a GPU once, for one read of losses and norm."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.tiny import surroundings


@pytest.fixture(scope="module")
def waits() -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.step_on_a_gpu"],
        capture_output=True,
        text=True,
        check=False,
        env=surroundings(),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("case", ["plain", "chunked", "documents", "experts"])
def test_the_losses_are_read_once_and_after_the_update(
    case: str, waits: dict[str, list[str]]
) -> None:
    """The read of several numbers is one copy; imagined tensors make it one call per number."""
    first, *reads = waits[case]
    assert first == "update"
    assert {line.split(":")[0] for line in reads} == {"read"}
    assert len({*reads}) == 1


def test_updates_that_cannot_skip_wait_for_the_read(waits: dict[str, list[str]]) -> None:
    assert {line.split(":")[0] for line in waits["muon"]} == {"read"}


@pytest.mark.parametrize("what", ["divisor", "norm", "mask"])
def test_planted_waits_are_found(what: str, waits: dict[str, list[str]]) -> None:
    lines = [line.split(":")[0] for line in waits[f"planted {what}"]]
    assert {*lines} == {"update", "read", f"planted_{what}"}
    assert lines.count(f"planted_{what}") == 1


def test_masked_attention_has_as_many_key_heads_as_query_heads(waits: dict[str, list[Any]]) -> None:
    """With fewer, torch has only a kernel that stores all scores."""
    assert waits["grouped and masked"] == [False] * 4, "two layers, two steps"
