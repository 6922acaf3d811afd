"""Arithmetic intensities: those of the literature derived, and counted on built models."""

from itertools import product

import pytest

from archwright.model import build
from archwright.planning.roofline import Operator, Phase, operators, ridge
from archwright.spec.hardware import load_hardware
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load


def attention(phase: Phase, texts: int, length: int, dim: int, heads: int, kv: int) -> Operator:
    """Return all of one layer's attention as one operator, with scores that are written, in numbers and not bytes."""
    mask = "causal" if phase == "decode" else "full"  # the last token sees all, and so do all
    spec = ModelSpec(dim=dim, num_layers=1, context_length=length, vocab_size=64).override(
        f"attention.num_heads={heads}",
        f"attention.num_kv_heads={kv}",
        f"attention.mask.kind={mask}",
    )
    model = build(spec, device="meta")
    found = operators(
        model, phase, texts=texts, length=length, itemsize=1, keeps_scores=phase != "decode"
    )
    some = [each for each in found if each.name.startswith("attention")]
    assert len(some) == 2
    return Operator("attention", sum(o.flops for o in some), sum(o.num_bytes for o in some))


SIZES = [*product((1, 4, 64), (128, 512), (512, 2048), (4, 16))]


@pytest.mark.parametrize(("b", "n", "d", "h"), SIZES)
def test_attention_in_training(b: int, n: int, d: int, h: int) -> None:
    """FLOPs b n d^2 over numbers b n d + b h n^2 + d^2 give 1 / (1/k + 1/(b n)) with heads of k = d / h (Shazeer, 2019,
    section 2.3.1), for texts no longer than the model is wide, as there."""
    n = min(n, d)
    formula = 1 / (h / d + 1 / (b * n))
    counted = attention("training", b, n, d, h, h)
    terms = b * n * d * d, b * n * d + b * h * n * n + d * d
    assert 4 < counted.flops / (3 * terms[0]) < 20
    assert 2 < counted.num_bytes / (3 * terms[1]) < 15
    assert 0.5 < counted.intensity / formula < 9


@pytest.mark.parametrize(("b", "n", "d", "h"), SIZES)
@pytest.mark.parametrize("grouped", [False, True])
def test_attention_in_writing(b: int, n: int, d: int, h: int, grouped: bool) -> None:
    """Of each token d^2 weights and b n d numbers of the cache are read for b d^2 FLOPs: 1 / (n/d + 1/b). With one head
    of keys and values 1 / (1/d + n/(d h) + 1/b) (Shazeer, 2019, sections 2.4.1 and 3.1)."""
    counted = attention("decode", b, n, d, h, 1 if grouped else h)
    many, one = 1 / (n / d + 1 / b), 1 / (1 / d + n / (d * h) + 1 / b)
    assert 1 < counted.intensity / (one if grouped else many) < 6


def test_writing_is_bound_by_bandwidth_and_training_is_not() -> None:
    hardware = load_hardware("h100")
    model = build(load("llama-3-8b"), device="meta")
    for phase, above in (("training", True), ("prefill", True), ("decode", False)):
        found = {o.name: o for o in operators(model, phase, texts=4, length=4096)}  # type: ignore[arg-type]
        for name in ("feed-forward", "attention", "attention between tokens"):
            assert (found[name].intensity > ridge(hardware, "bf16")) == above, (phase, name)
        assert found["norms and sums"].intensity < 2


def test_all_that_is_computed_is_an_operators() -> None:
    """By the FLOPs of the plan, whose norms count nothing."""
    from archwright.planning.cost import flops_per_token

    model = build(load("mixtral-8x7b"), device="meta")
    found = operators(model, "training", texts=2, length=1024)
    without_norms = sum(o.flops for o in found if o.name != "norms and sums")
    assert without_norms == pytest.approx(2048 * flops_per_token(model, 1024), rel=1e-12)


def test_one_token_reads_its_experts_and_many_read_all() -> None:
    model = build(load("mixtral-8x7b"), device="meta")
    one, many = (
        next(o for o in operators(model, "decode", texts=n, length=64) if o.name == "feed-forward")
        for n in (1, 512)
    )
    assert 3.9 < many.num_bytes / one.num_bytes < 4.2
