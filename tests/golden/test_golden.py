"""Losses, names, draws and hashes are what they were: see `tests.golden.__main__` for when they may change."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.golden.record import COMPOSITIONS, GOLDEN, losses
from tests.tiny import ROOT, surroundings

KEPT = json.loads(GOLDEN.read_text(encoding="utf-8"))
RELATIVE = 1e-6

Golden = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def found() -> Golden:
    """All compositions as they are now, from a process that checks no shapes, which takes three times as long."""
    command = [sys.executable, "-m", "tests.golden"]
    done = subprocess.run(
        command, cwd=ROOT, env=surroundings(), check=True, capture_output=True, text=True
    )
    golden: Golden = json.loads(done.stdout)
    return golden


def test_every_composition_is_kept() -> None:
    assert list(KEPT) == list(COMPOSITIONS)


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_hashes(found: Golden, name: str) -> None:
    assert found[name]["hashes"] == KEPT[name]["hashes"]


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_names_and_draws(found: Golden, name: str) -> None:
    tensors, kept = found[name]["tensors"], KEPT[name]["tensors"]
    assert {path: shape for path, (shape, *_) in tensors.items()} == {
        path: shape for path, (shape, *_) in kept.items()
    }
    for path, (_, size, mean) in kept.items():
        expected = pytest.approx([size, mean], rel=RELATIVE, abs=RELATIVE * size)
        assert tensors[path][1:] == expected, path


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_losses(found: Golden, name: str) -> None:
    assert found[name]["losses"] == pytest.approx(KEPT[name]["losses"], rel=RELATIVE)


@pytest.mark.filterwarnings("ignore:.* is now ")
@pytest.mark.parametrize(
    "change",
    [
        "norm.eps=1.01e-2",
        "init.std=0.2001",
        "position.theta=10010",
        "feedforward.beta=0.501",
        "layer_kinds.prefix.attention.mask.size=10",
        "attention.scale.dim=9",
    ],
)
def test_small_changes_are_noticed(change: str) -> None:
    name = "17-two-ways"
    assert losses(name) == pytest.approx(KEPT[name]["losses"], rel=RELATIVE)
    assert losses(name, change) != pytest.approx(KEPT[name]["losses"], rel=RELATIVE)
