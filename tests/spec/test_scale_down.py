"""Models at the size of an experiment keep their choices."""

import pytest

from archwright.spec.model_spec import ModelSpec

KINDS = ("layer_kinds.local.attention.mask.kind=window", "layer_kinds.local.attention.mask.size=64")


@pytest.mark.parametrize(
    ("arrangement", "num_layers", "expected"),
    [
        ((), 32, 4),
        ((), 2, 2),
        (('layers.cycle=["local", "default", "default"]',), 32, 6),
        (('layers.cycle=["local", "local", "local", "local", "local", "default"]',), 48, 6),
        (('layers.prefix=["local", "local", "local"]', 'layers.cycle=["local", "default"]'), 32, 5),
        (('layers.suffix=["local", "local", "local", "local", "local"]',), 32, 6),
    ],
)
def test_a_tiny_model_has_its_ends_and_whole_cycles(
    arrangement: tuple[str, ...], num_layers: int, expected: int
) -> None:
    spec = ModelSpec(num_layers=num_layers).override(*KINDS, *arrangement)
    assert spec.tiny().num_layers == expected


@pytest.mark.parametrize(
    ("words", "path", "expected"),
    [
        (("attention.num_heads=8", "attention.num_kv_heads=2"), "attention.num_kv_heads", 1),
        (("attention.num_heads=8", "attention.num_kv_heads=8"), "attention.num_kv_heads", 4),
        (("feedforward.hidden_dim=2048",), "feedforward.hidden_dim", 256),
        (("feedforward.hidden_dim=8",), "feedforward.hidden_dim", 8),
        (("context_length=1024", "attention.mask.kind=window", "attention.mask.size=256"), "attention.mask.size", 32),
        (("context_length=1024", "attention.mask.kind=window", "attention.mask.size=16"), "attention.mask.size", 8),
    ],
)  # fmt: skip
def test_proportions_stay(words: tuple[str, ...], path: str, expected: int) -> None:
    found = ModelSpec(dim=512).override(*words).tiny()
    for name in path.split("."):
        found = getattr(found, name)
    assert found == expected
