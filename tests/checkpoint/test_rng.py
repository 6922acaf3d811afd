import random

import numpy as np
import pytest
import torch

from archwright.checkpoint.rng import read_generators, set_generators


def draw() -> list[float]:
    """Draw an odd number of normals, as numpy and Python make them in pairs."""
    draws = [np.random.normal(), random.gauss(0, 1), torch.rand(()).item(), random.random()]
    return [float(draw) for draw in draws]


def test_random_numbers_go_on() -> None:
    draw()
    state = read_generators()
    onward = [draw() for _ in range(3)]
    set_generators(state)
    assert [draw() for _ in range(3)] == onward


def test_cuda_is_not_started_for_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError

    monkeypatch.setattr("torch.cuda.get_rng_state_all", refuse)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    assert read_generators()["cuda"] == []


def test_every_cuda_device_that_is_here_gets_its_state_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In place of devices: three when saving, two when loading."""
    states, given = [torch.tensor([i]) for i in range(3)], {}
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.get_rng_state_all", lambda: states)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.set_rng_state", lambda state, i: given.update({i: state}))
    set_generators(read_generators())
    assert given == {0: states[0], 1: states[1]}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_random_numbers_of_a_gpu_go_on() -> None:
    torch.rand(3, device="cuda")
    state = read_generators()
    onward = torch.rand(3, device="cuda")
    set_generators(state)
    assert torch.rand(3, device="cuda").equal(onward)
