"""From a spec to a model: what it has, how it is called, and who may not be built."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from archwright.catalogue.summaries import one_line
from archwright.model import build
from archwright.parts.masks import pairs
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load

SIZES = [(64, 2, 128, 4, 2), (96, 3, 64, 3, 1), (512, 8, 4096, 8, 2)]
SIZED = pytest.mark.parametrize(("d", "layers", "vocab", "heads", "kv"), SIZES)


def count(name: str, d: int, layers: int, vocab: int, heads: int, *words: str) -> int:
    spec = load(name).override(
        f"dim={d}", f"num_layers={layers}", f"vocab_size={vocab}", f"attention.num_heads={heads}", *words
    )  # fmt: skip
    return build(spec, device="meta").num_parameters()


@SIZED
def test_parameters_of_the_textbook(d: int, layers: int, vocab: int, heads: int, kv: int) -> None:
    attention = 4 * (d * d + d)
    feedforward = d * 4 * d + 4 * d + 4 * d * d + d
    norms = 2 * 2 * d
    expected = vocab * d + layers * (attention + feedforward + norms)  # tied, no final norm
    assert count("textbook", d, layers, vocab, heads) == expected


@SIZED
def test_parameters_of_the_modern(d: int, layers: int, vocab: int, heads: int, kv: int) -> None:
    hidden = -(-(8 * d // 3) // 64) * 64
    attention = 2 * d * d + 2 * d * (kv * d // heads)
    expected = 2 * vocab * d + layers * (attention + 3 * d * hidden + 2 * d) + d
    found = count("modern", d, layers, vocab, heads, f"attention.num_kv_heads={kv}")
    assert found == expected


def test_names_are_what_other_rooms_rely_on() -> None:
    spec = load("modern").override(
        "num_layers=1", "position.kind=learned", "attention.qk_norm.kind=rms"
    )
    assert list(build(spec, device="meta").state_dict()) == [
        "embedding.weight",
        "position.table.weight",
        "layers.0.residual.norms.attention.weight",
        "layers.0.residual.norms.feedforward.weight",
        "layers.0.attention.query.weight",
        "layers.0.attention.key.weight",
        "layers.0.attention.value.weight",
        "layers.0.attention.out.weight",
        "layers.0.attention.query_norm.weight",
        "layers.0.attention.key_norm.weight",
        "layers.0.feedforward.gate.weight",
        "layers.0.feedforward.up.weight",
        "layers.0.feedforward.down.weight",
        "norm.weight",
        "head.weight",
    ]


def test_no_parameter_is_a_view_or_half_initialised() -> None:
    model = build(load("textbook").override("dim=32", "num_layers=2", "vocab_size=64"))
    assert all(p.isfinite().all() and p.is_contiguous() for p in model.parameters())
    assert all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())


class TestRepr:
    def test_it_is_one_line_with_the_choices(self) -> None:
        assert repr(build(load("modern"), device="meta")) == (
            "Decoder(modern: 26.7M parameters, dim 512, 8 layers of pre-norm rms, rope positions, "
            "causal attention in 8/2 heads of 64, swiglu 1408, untied head of 4096)"
        )
        assert repr(build(load("textbook"), device="meta")) == (
            "Decoder(textbook: 21M parameters, dim 512, 6 layers of post-norm layer, "
            "sinusoidal positions, causal attention in 8/8 heads of 64, relu 2048, tied head of 4096)"
        )

    def test_each_kind_of_layer_in_use_is_described_once(self) -> None:
        spec = ModelSpec(dim=64, num_layers=4).override(
            "layer_kinds.local.attention.mask.kind=window", "layer_kinds.bare.attention.kind=none",
            "layer_kinds.idle.norm.kind=layer", 'layers.cycle=["local", "bare"]',
        )  # fmt: skip
        said = one_line(spec.resolved(), 0)
        assert said.count("window attention") == 1
        assert "local: pre-norm rms" in said
        assert "bare: pre-norm rms, rope positions, swiglu 192" in said
        assert "idle" not in said
        assert "default" not in said


def test_broken_rules_are_told_before_anything_is_built() -> None:
    spec = ModelSpec(dim=48).override(
        "attention.num_heads=5", "attention.num_kv_heads=3", "position.kind=none"
    )
    with pytest.raises(UserError) as caught:
        build(spec)
    assert [line.split(":")[0] for line in caught.value.lines] == [
        "attention.num_kv_heads",
        "attention.num_heads",
    ]


def modules(model: nn.Module) -> Iterator[str]:
    for module in model.modules():
        yield type(module).__name__


@pytest.mark.parametrize(("name", "absent"), [("modern", "LayerNorm"), ("textbook", "Rotary")])
def test_only_what_is_chosen_is_built(name: str, absent: str) -> None:
    found = set(modules(build(load(name), device="meta")))
    assert absent not in found
    assert {"Decoder", "Layer", "SoftmaxAttention", "Head"} <= found


@pytest.mark.parametrize(
    "mask", ["kind=strided stride=4", "kind=fixed stride=4 num_summary=1", "kind=window size=4"]
)
def test_dense_and_banded_layers_take_turns(mask: str) -> None:
    """GPT-3's arrangement (Brown et al., 2020, section 2.1): the band is narrower than what dense layers see."""
    words = [f"layer_kinds.banded.attention.mask.{word}" for word in mask.split()]
    spec = ModelSpec(dim=16, num_layers=4, vocab_size=8, context_length=32)
    model = build(spec.override(*words, 'layers.cycle=["default", "banded"]'), device="meta")
    masks = [mixer.pattern.value for mixer in model.mixers()]
    assert masks[0] is masks[2] is not masks[1] is masks[3]
    assert [pairs(m, 32) == 32 * 33 / 2 for m in masks] == [True, False] * 2


def test_scores_are_divided_by_the_number_of_the_layer() -> None:
    spec = ModelSpec(dim=32, num_layers=3, vocab_size=32, context_length=8)
    model = build(spec.override("attention.num_heads=2", "attention.scale.kind=inverse_layer"))
    scales = [layer.attention.scale for layer in model.layers]
    assert scales == pytest.approx([1 / 4, 1 / 8, 1 / 12])


def test_layers_share_a_mask_where_their_heads_see_alike() -> None:
    """Heads of a block-sparse mask differ, so that it belongs to a number of heads."""
    sparse = ["attention.mask.kind=block_sparse", "attention.head_dim=8", "attention.num_heads=2"]
    wide = ["layer_kinds.wide.attention.num_heads=4", 'layers.cycle=["default", "wide"]']
    spec = ModelSpec(dim=16, num_layers=4, vocab_size=8, context_length=32).override(*sparse, *wide)
    for differ, number in ((True, 2), (False, 1)):
        model = build(
            spec.override(f"attention.mask.per_head={str(differ).lower()}"), device="meta"
        )
        assert len(model.masks) == number


def test_deepnorm_shrinks_what_is_added_and_nothing_else() -> None:
    """Wang et al., 2022, figure 2: value, out and feed-forward maps by (8 num_layers)^(-1/4)."""
    words = ("dim=128", "num_layers=2", "vocab_size=64", "residual.kind=deepnorm")
    layer = build(ModelSpec().override(*words), seed=0).layers[0]
    gain = 16**-0.25
    for name, expected in [("query", 1), ("key", 1), ("value", gain), ("out", gain)]:
        weight = getattr(layer.attention, name).weight
        glorot = (2 / sum(weight.shape)) ** 0.5 * 0.9866  # of a normal cut at 3 sigma
        assert weight.std().item() == pytest.approx(expected * glorot, rel=0.03)


@pytest.mark.parametrize(("mask", "two_way"), [("causal", False), ("full", True)])
def test_distances_have_two_directions_where_keys_ahead_are_seen(mask: str, two_way: bool) -> None:
    words = (f"attention.mask.kind={mask}", "position.kind=t5", "num_layers=1")
    (relative,) = build(ModelSpec().override(*words), device="meta").relatives.values()
    assert relative.two_way is two_way


@pytest.mark.parametrize(
    ("over", "shapes"),
    [("projection", [(32,), (16,)]), ("head", [(8,), (8,)]), ("per_head", [(4, 8), (2, 8)])],
)
def test_norms_of_queries_and_keys_have_the_width_that_is_asked_for(
    over: str, shapes: list[tuple[int, ...]]
) -> None:
    words = ("attention.num_heads=4", "attention.num_kv_heads=2", "attention.qk_norm.kind=rms")
    spec = ModelSpec(dim=32, num_layers=1).override(*words, f"attention.qk_norm_over={over}")
    attention = build(spec, device="meta").layers[0].attention
    assert [
        tuple(attention.get_parameter(f"{n}_norm.weight").shape) for n in ("query", "key")
    ] == shapes
