"""Value embeddings: how they begin, where they are counted, and what they need.

What they compute is held by `tests/model/test_published_formulas.py`, beside formulas in NumPy."""

import pytest
import torch

from archwright.model import Decoder, build, build_layer
from archwright.optim.groups import roles
from archwright.parts.mixers import SoftmaxAttention
from archwright.spec.attention import SoftmaxAttention as Spec
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load
from archwright.spec.value_embeddings import GatedValueEmbedding, ValueEmbedding

SMALL = load("modern").override(
    *("dim=48", "num_layers=2", "vocab_size=64", "context_length=16"),
    *("attention.num_heads=4", "attention.num_kv_heads=2"),
)
KINDS = [kind for kind in ValueEmbedding.kinds if kind != "none"]


def spec_of(kind: str, *words: str) -> ModelSpec:
    return SMALL.override(f"attention.value_embedding.kind={kind}", *words)


def built(kind: str) -> Decoder:
    return build(spec_of(kind)).double().eval()


@pytest.mark.parametrize("kind", KINDS)
def test_another_table_changes_values_and_nothing_before_them(kind: str) -> None:
    """A model whose table is 0 is the model without one, but for the factor of its values."""
    model, plain = built(kind), build(SMALL).double().eval()
    assert {n for n, _ in plain.named_parameters()} < {n for n, _ in model.named_parameters()}
    with torch.no_grad():
        for layer in model.stack:
            layer.attention.value_embedding.weight.zero_()
            if kind == "scaled":
                layer.attention.value_mix.sum.first.fill_(1.0)
    tokens = torch.randint(64, (2, 9))
    torch.testing.assert_close(model(tokens).logits, plain(tokens).logits)


def test_they_begin_as_published() -> None:
    gated, scaled = built("gated"), built("scaled")
    v, e = torch.randn(2, 3, 5, 2, 12, dtype=torch.float64)  # [batch, length, heads, width]
    x = torch.randn(3, 5, 48, dtype=torch.float64)
    torch.testing.assert_close(gated.layers[0].attention.value_mix(v, e, x), v + e)
    torch.testing.assert_close(scaled.layers[0].attention.value_mix(v, e, x), (v + e) / 2)
    for layer in gated.stack:
        assert not layer.attention.value_mix.gate.weight.any()  # 2 sigmoid(0) = 1
        assert layer.attention.value_mix.gate.weight.shape == (2, 32)
    for layer in scaled.stack:
        numbers = layer.attention.value_mix.sum
        assert (numbers.first.item(), numbers.second.item()) == (0.5, 0.5)
    table = gated.layers[0].attention.value_embedding.weight
    assert table.shape == (64, 2 * 12)
    assert table.std().item() == pytest.approx(1.0, rel=0.1)  # that of the embedding
    other = gated.layers[1].attention.value_embedding.weight
    assert not torch.equal(table, other)


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_embeddings_for_optimizers(kind: str) -> None:
    found = roles(built(kind))
    assert found["layers.0.attention.value_embedding.weight"] == "embedding"
    rest = {"gated": ["matrix"], "scaled": ["vector"] * 2}[kind]
    assert [role for name, role in found.items() if "layers.0.attention.value_mix" in name] == rest


def test_the_gate_reads_all_of_a_narrow_model() -> None:
    assert GatedValueEmbedding().width(16) == 16
    assert GatedValueEmbedding(channels=12).width(64) == 12
    spec = spec_of("gated", "attention.value_embedding.channels=40")
    assert spec.resolved().tiny().attention.value_embedding == GatedValueEmbedding()


def test_without_a_model_there_are_no_tokens() -> None:
    with pytest.raises(UserError, match=r"^attention.value_embedding.kind: needs a row for each"):
        SoftmaxAttention(Spec(value_embedding=GatedValueEmbedding()), 16)
    layer = build_layer(spec_of("gated"))
    with pytest.raises(UserError, match="token ids are read by this layer"):
        layer(torch.randn(1, 4, 48))
