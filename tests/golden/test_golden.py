"""Losses, names, draws and hashes are what they were: see `tests.golden.__main__` for when they may change."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

import archwright
from archwright.lab.running.run_cache import NUMERICS
from archwright.spec.run_spec import RunSpec
from tests.golden.record import COMPOSITIONS, GOLDEN, RELATIVE, is_model, losses, other_numbers
from tests.tiny import ROOT, surroundings

KEPT = json.loads(GOLDEN.read_text(encoding="utf-8"))
RECORDED_UNDER = KEPT.pop("numerics")

Golden = dict[str, dict[str, Any]]


def skip_other_draws(name: str) -> None:
    """Leave a composition out of truncated normals, which torch before 2.12 draws otherwise."""
    if TorchVersion(torch.__version__) >= (2, 12):
        return
    load = archwright.load if is_model(name) else archwright.load_run
    spec = load(COMPOSITIONS[name])
    if (spec.model if isinstance(spec, RunSpec) else spec).init.kind == "glorot":
        pytest.skip("torch before 2.12 draws truncated normals otherwise")


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> Golden:
    """The compositions that are asked for as they are now, from a process that checks no shapes, which takes
    three times as long."""
    names = {
        item.callspec.params["name"]
        for item in request.session.items
        if item.path == request.path and "found" in item.fixturenames
    }
    command = [sys.executable, "-m", "tests.golden", *sorted(names)]
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
    skip_other_draws(name)
    tensors, kept = found[name]["tensors"], KEPT[name]["tensors"]
    assert {path: shape for path, (shape, *_) in tensors.items()} == {
        path: shape for path, (shape, *_) in kept.items()
    }
    for path, (_, size, mean) in kept.items():
        expected = pytest.approx([size, mean], rel=RELATIVE, abs=RELATIVE * size)
        assert tensors[path][1:] == expected, path


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_losses(found: Golden, name: str) -> None:
    skip_other_draws(name)
    if other_numbers(found[name], KEPT[name]):
        pytest.fail(complaint(name), pytrace=False)


def test_losses_were_recorded_under_the_number_that_keys_the_run_cache() -> None:
    if NUMERICS != RECORDED_UNDER:
        pytest.fail(complaint(), pytrace=False)


def complaint(name: str = "", numerics: int = NUMERICS) -> str:
    """Return what to do where losses, or the number they were recorded under, are others than those kept."""
    if numerics != RECORDED_UNDER:
        return (
            f"golden losses were recorded under NUMERICS = {RECORDED_UNDER}, it is {numerics}: "
            "renew them with `python -m tests.golden --renew`"
        )
    return (
        f"the losses of {name} differ though NUMERICS is still {numerics}: undo the change, or, if it is meant, "
        "raise NUMERICS in running/run_cache.py of the lab and renew the losses with `python -m tests.golden --renew`"
    )


@pytest.mark.parametrize("change", [1 + 2e-6, float("nan")])
def test_other_losses_are_noticed(change: float) -> None:
    kept = KEPT["01-modern"]
    assert not other_numbers(kept, kept)
    losses = [*kept["losses"][:-1], kept["losses"][-1] * change]
    assert other_numbers({"losses": losses}, kept)
    assert "raise NUMERICS" in complaint("01-modern", RECORDED_UNDER)
    assert "renew" in complaint("01-modern", RECORDED_UNDER + 1)


@pytest.mark.sampled(fast=1)
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
