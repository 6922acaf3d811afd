"""Layers that share their parameters are the same computation as copies of one layer, and are kept once."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from archwright.checkpoint import read_model, write_model
from archwright.model import Decoder, build, build_layer
from archwright.planning.cost import flops_per_token
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load

SIZES = ("dim=32", "vocab_size=64", "context_length=24", "num_layers=5", "attention.num_heads=2")
ALTERNATING = (
    'layer_kinds.local={attention={mask={kind="window",size=4}}}',
    'layers.cycle=["default","local"]',
)


def pair(*words: str) -> tuple[Decoder, Decoder]:
    """Return a model whose layers are shared by kind, and one with as many layers, which are copies."""
    spec = load("modern").override(*SIZES, *words)
    shared = build(spec.override("layers.shared=true"), seed=1).double()
    copies = build(spec, seed=2).double()
    values = dict(shared.state_dict())
    for i, number in enumerate(shared.spec.layer_indices):
        ours = f"layers.{number}."
        own = {n: t for n, t in shared.state_dict().items() if n.startswith(ours)}
        values |= {f"layers.{i}." + name.removeprefix(ours): t for name, t in own.items()}
    copies.load_state_dict(values)
    return shared, copies


@pytest.mark.parametrize(
    "words",
    [(), ALTERNATING, ("residual.kind=reversible",)],
    ids=["one kind", "two kinds", "two streams"],
)
def test_it_computes_what_copies_of_its_layers_compute(words: tuple[str, ...]) -> None:
    shared, copies = pair(*words)
    kinds = len({*shared.spec.layer_indices})
    assert len(shared.layers) == kinds < len(copies.layers) == len([*shared.stack])
    tokens = torch.randint(64, (2, 24), generator=torch.Generator().manual_seed(0))
    losses = []
    for model in (shared, copies):
        logits = model(tokens).logits
        losses.append(F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()))
        losses[-1].backward()
    torch.testing.assert_close(*losses, rtol=0, atol=1e-12)
    copied = dict(copies.named_parameters())
    indices = shared.spec.layer_indices
    for name, parameter in shared.named_parameters():
        first, _, rest = name.partition(".")
        names = [name]
        if first == "layers":  # the gradient is that of all uses
            number, _, rest = rest.partition(".")
            names = [f"layers.{i}.{rest}" for i, n in enumerate(indices) if n == int(number)]
        expected = torch.stack([grad for n in names if (grad := copied[n].grad) is not None])
        torch.testing.assert_close(parameter.grad, expected.sum(0), rtol=1e-9, atol=1e-12)
    assert flops_per_token(shared, 24) == flops_per_token(copies, 24)


def test_a_cache_keeps_what_each_use_of_a_layer_has_read() -> None:
    shared, _ = pair(*ALTERNATING)
    tokens = torch.randint(64, (2, 20), generator=torch.Generator().manual_seed(0))
    cache = shared.eval().new_cache()
    parts = [shared(part, cache=cache).logits for part in tokens.split((7, 1, 1, 11), 1)]
    torch.testing.assert_close(torch.cat(parts, 1), shared(tokens).logits, rtol=0, atol=1e-12)


def test_its_parameters_are_written_once(tmp_path: Path) -> None:
    shared, copies = pair()
    for name, model in {"shared": shared, "copies": copies}.items():
        write_model(tmp_path / name, model, {})
    assert {n.split(".")[1] for n in read_model(tmp_path / "shared") if "layers" in n} == {"0"}
    sizes = [(tmp_path / name).stat().st_size for name in ("shared", "copies")]
    assert sizes[0] < 0.5 * sizes[1]


def test_a_layer_alone_is_that_of_the_model() -> None:
    spec = load("modern").override(*SIZES, *ALTERNATING, "layers.shared=true")
    model, layer = build(spec, seed=3), build_layer(spec, 3, seed=3)
    for name, parameter in layer.named_parameters():
        assert torch.equal(parameter, model.layers[1].get_parameter(name))


def test_a_router_is_not_shared() -> None:
    spec = ModelSpec.model_validate(
        {"layers": {"shared": True}, "feedforward": {"kind": "experts"}}
    )
    with pytest.raises(UserError, match=r"layers\.shared: found true"):
        build(spec)
