"""Layers that read keys and values of earlier ones, and embeddings for each layer (Gemma 3n, Gemma 4)."""

import pytest
import torch
import torch.nn.functional as F

from archwright.model import build
from archwright.model.model import Decoder
from archwright.planning.memory import cache_bytes
from archwright.scale.layout import Layout
from archwright.scale.stages import refusals
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.rules import enforce
from tests.laws.laws import LAWS, Case

WINDOW = 'attention.mask={kind="window",size=5}'
SPEC = ModelSpec(dim=32, num_layers=6, vocab_size=64, context_length=24).override(
    "attention.num_heads=4",
    "attention.num_kv_heads=2",
    "attention.qk_norm.kind=rms",
    f"layer_kinds.local.{WINDOW}",
    "layer_kinds.late.attention.shares_kv=true",
    "layer_kinds.late.feedforward.hidden_dim=48",
    'layer_kinds.late_local.attention={mask={kind="window",size=5},shares_kv=true}',
    'layers.cycle=["local","default","local","late_local","late","late_local"]',
    "residual.layer_embedding=8",
    "residual.layer_scalar=true",
)
TOKENS = torch.randint(64, (2, 24), generator=torch.Generator().manual_seed(0))


def model_of(*words: str) -> Decoder:
    """Return a model in float64 whose numbers are all random."""
    model = build(SPEC.override(*words), seed=3).double().eval()
    with torch.no_grad():
        for i, (name, tensor) in enumerate([*model.named_parameters(), *model.named_buffers()]):
            if tensor.ndim == 1 and "rotar" not in name:
                tensor += 0.3 * torch.randn(
                    tensor.shape, generator=torch.Generator().manual_seed(i)
                )
    return model


def test_a_layer_reads_the_nearest_one_with_its_mask_and_sizes() -> None:
    assert SPEC.kv_sources == (1, 2, 3, 3, 2, 3)
    model = model_of()
    late = [layer.attention for layer in model.stack][3:]
    assert [(m.reads_state_of, *m.reads_from) for m in late] == [
        (source, f"keys_{source}", f"values_{source}") for source in (3, 2, 3)
    ]
    assert not any("key" in name for m in late for name, _ in m.named_parameters())


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_they_obey_the_laws(law: object) -> None:
    law(Case(SPEC, 1))  # type: ignore[operator]


def test_keys_and_values_are_those_of_the_layer_that_is_read() -> None:
    """softmax(q_5 k_2^T / sqrt(d)) v_2 of hooks on the projections and of RoPE written out."""
    model, seen = model_of(), {}
    for place in (1, 4):
        attention = model.layers[place].attention
        for name in ("query", "key", "value", "out"):
            if (part := getattr(attention, name)) is not None:
                part.register_forward_hook(
                    lambda _, args, out, at=(place, name): seen.update({at: (args[0], out)})
                )
    with torch.no_grad():
        model(TOKENS)

    def heads(place: int, name: str, number: int) -> torch.Tensor:
        x = seen[place, name][1].view(2, 24, number, 8)
        if name == "value":
            return x
        norm = getattr(model.layers[place].attention, f"{name}_norm")
        x = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight
        angles = torch.arange(24)[:, None] * 10_000.0 ** (-torch.arange(4) / 4)
        turn = torch.polar(torch.ones(24, 4).double(), angles.double())[:, None]
        y = torch.complex(x[..., :4], x[..., 4:]) * turn
        return torch.cat((y.real, y.imag), -1)

    q, k, v = heads(4, "query", 4), heads(1, "key", 2), heads(1, "value", 2)
    k, v = (x.repeat_interleave(2, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5
    scores = scores.masked_fill(~torch.ones(24, 24).tril().bool(), -torch.inf)
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(-2)
    torch.testing.assert_close(seen[4, "out"][0], expected, rtol=1e-6, atol=1e-6)


def test_a_layer_ends_with_its_embedding_and_its_factor() -> None:
    model, seen = model_of(), []
    layer = model.layers[2]
    layer.residual.register_forward_hook(lambda _, args, out: seen.append(out))
    layer.register_forward_hook(lambda _, args, out: seen.append(out))
    with torch.no_grad():
        model(TOKENS)
        x, end = seen
        part, x0 = layer.layer_embedding, F.embedding(TOKENS, model.embedding.weight)

        def normed(y: torch.Tensor, norm: torch.nn.Module) -> torch.Tensor:
            return y / (y.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight

        e = normed(x0 @ part.project.weight.T / 32**0.5, model.relatives["layer_embedding_0"])
        e = (e + 8**0.5 * part.table.weight[TOKENS]) / 2**0.5
        inner = F.gelu(x @ part.gate.weight.T, approximate="tanh") * e
        expected = (x + normed(inner @ part.out.weight.T, part.norm)) * layer.layer_scalar.value
    torch.testing.assert_close(end, expected, rtol=1e-12, atol=1e-12)


def test_layers_that_share_keep_nothing() -> None:
    """Of six layers, two keep five tokens, one keeps 24, and three keep none: 2 heads, keys and values of 8."""
    model = build(SPEC)
    cache = model.new_cache()
    model(TOKENS[:1], cache=cache)
    assert cache_bytes(model, 24) == (5 + 5 + 24) * 2 * 2 * 8 * 2  # in 16 bits
    kept = [state["attention"] for state in map(cache.states, range(6))]
    assert [kept.index(state) for state in kept] == [0, 1, 2, 2, 1, 2]
    assert model.layers[4].attention.state_bytes(24, 4) == 0


def test_keys_may_be_the_values() -> None:
    """As values from a map of their own, with equal weights."""
    ours, plain = model_of("attention.keys_as_values=true"), model_of()
    weights = ours.state_dict()
    weights |= {n.replace(".key.", ".value."): w for n, w in weights.items() if ".key." in n}
    plain.load_state_dict(weights)
    torch.testing.assert_close(ours(TOKENS).logits, plain(TOKENS).logits, rtol=1e-12, atol=1e-12)
    assert cache_bytes(ours, 24) == cache_bytes(plain, 24)


@pytest.mark.parametrize("checkpointing", ["full", "selective"])
def test_recomputed_layers_have_the_same_gradients(checkpointing: str) -> None:
    found = []
    for mode in ("none", checkpointing):
        model = model_of().train()
        model.activation_checkpointing = mode  # type: ignore[assignment]
        model(TOKENS).logits.square().mean().backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    for name, grad in found[0].items():
        assert grad is not None, name
        torch.testing.assert_close(found[1][name], grad, rtol=1e-12, atol=1e-14)


def test_stages_of_a_pipeline_do_not_read_each_other() -> None:
    lines = [
        *refusals(build(SPEC.override("residual.layer_embedding=none")), Layout(2, pipeline=2))
    ]
    assert (
        'model.layer_kinds.late: reads "keys_2" of layer 2, in another stage; expected another, or '
        in str(lines)
    )
    apart = [*refusals(build(SPEC.override('layers.cycle=["default"]')), Layout(2, pipeline=2))]
    assert 'reads "embedding" of layer 0, in another stage' in str(apart)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["layer_kinds.late.attention.num_kv_heads=1"], "layer_kinds.late.attention.shares_kv"),
        (["layer_kinds.late.position.theta=500.0"], "layer_kinds.late.attention.shares_kv"),
        (
            ["attention.keys_as_values=true", "attention.value_head_dim=4"],
            "attention.value_head_dim: found 4 with keys_as_values = true; expected head_dim = 8",
        ),
        (["layers.shared=true"], "layers.shared = true, whose layers have the same maps"),
        (
            ['residual={kind="reversible",layer_embedding=8}'],
            "layer_embedding: found 8 with 2 streams",
        ),
        (
            ["layer_kinds.late.attention.value_embedding.kind=scaled"],
            'value_embedding.kind: found "scaled" with shares_kv = true',
        ),
    ],
)
def test_what_cannot_be_shared_is_refused_in_one_line(words: list[str], line: str) -> None:
    with pytest.raises(UserError, match="expected") as refused:
        enforce(SPEC.override(*words))
    assert any(line in found for found in refused.value.lines)
