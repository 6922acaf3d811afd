"""Parts built on their own have initial values, and building a model draws no global random numbers."""

import importlib
from collections.abc import Iterator

import pytest
import torch

import archwright as aw
from archwright.parts.init import INITS
from archwright.parts.linear import Embedding, GroupedLinear, Linear, TokenTable
from archwright.spec.read import load, preset_names

assemble = importlib.import_module("archwright.model.build")._assemble


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Fill uninitialised memory with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_a_map_alone_keeps_the_size_of_its_input(poisoned: None) -> None:
    torch.manual_seed(0)
    for part in (
        Linear(256, 128, bias=True),
        GroupedLinear(3, 256, 128, active_fraction=1.0, bias=True),
        Embedding(128, 256),
        TokenTable(128, 256),
    ):
        assert part.weight.std().item() == pytest.approx(1 / 16, rel=0.05)
        assert part.bias is None or not part.bias.any()


def test_no_part_of_any_preset_holds_uninitialised_memory(poisoned: None) -> None:
    specs = [
        load(name).tiny().override("vocab_size=64").resolved() for name in preset_names("models")
    ]
    for spec in {spec.hash(): spec for spec in specs}.values():
        model = assemble(spec, INITS.make(spec.init, spec.num_layers, spec.dim))
        found = [*model.named_parameters(), *model.named_buffers()]
        assert [name for name, tensor in found if tensor.isnan().any()] == [], spec.name


@pytest.mark.parametrize("name", ["modern", "deepseek-v3", "rwkv-7-0.1b", "jamba-v0.1"])
def test_building_a_model_draws_no_global_random_numbers(name: str) -> None:
    before = torch.get_rng_state()
    aw.build(load(name).tiny().override("vocab_size=64"), seed=1)
    assert torch.equal(before, torch.get_rng_state())
