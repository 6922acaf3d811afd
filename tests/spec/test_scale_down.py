"""Models at the size of an experiment keep their choices."""

import pytest

from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load
from archwright.spec.scale_down import scaled_down

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


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), (1, 1)),
        (("head.logit_scale=2",), (2, 1)),
        (("head.logit_divisor=2",), (1, 1)),  # 2 * 64 / 512 = 1/4
        (("head.logit_divisor=16",), (1, 2)),
        (("head.logit_scale=0.03125",), (0.25, 1)),
        (("head.logit_scale=0.5", "head.logit_divisor=4"), (0.5, 0.5)),
        (("head.logit_scale=0.04419417382415922",), (0.125, 1)),  # 512^-0.5
        (("head.logit_divisor=22.627417",), (1, 8)),
    ],
)
def test_logits_follow_the_width(words: tuple[str, ...], expected: tuple[float, float]) -> None:
    """Factors below 1 grow as the width shrinks, up to 1, and roots of the width are those of the new one."""
    head = ModelSpec(dim=512).override(*words).tiny().head
    assert (head.logit_scale, head.logit_divisor) == pytest.approx(expected)


def test_logits_of_a_wider_model_are_smaller_only_if_they_had_a_factor() -> None:
    sizes = {"head_dim": 64, "num_layers": 2, "context_length": 64, "num_experts": 4}
    assert scaled_down(load("granite-3-8b"), 8192, **sizes).head.logit_divisor == 32
    assert scaled_down(load("modern"), 8192, **sizes).head == load("modern").head


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("granite-3-8b", 1 / 16),  # 1 / 128 of heads of 128
        ("deepseek-v2", 0.11472138679292611 * (128 / 16) ** 0.5),  # 192^-0.5 times YaRN's factor
    ],
)
def test_scales_of_scores_follow_the_width_of_heads(name: str, value: float) -> None:
    assert load(name).tiny().attention.scale.value == pytest.approx(value)
