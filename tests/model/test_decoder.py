"""What a whole model must do with padding, documents, positions, and what each token may see."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archwright.model import Decoder, build
from archwright.parts.kernels import KERNELS
from archwright.planning.cost import counted
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load

SMALL = ("dim=16", "num_layers=2", "context_length=16", "vocab_size=32", "attention.num_heads=2")


def small(*words: str, preset: str = "modern", seed: int = 0) -> Decoder:
    """Build a small model in float64."""
    kv = ["attention.num_kv_heads=1"] if preset == "modern" else []
    spec = load(preset).override(*SMALL, *kv).override(*words)
    return build(spec, seed=seed).double().eval()


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, 32, shape, generator=torch.Generator().manual_seed(sum(shape)))


def logits(model: Decoder, *given: Any, **more: Any) -> Tensor:
    with torch.no_grad():
        return model(*given, **more).logits


MODELS = {
    "modern": [],
    "textbook": [],
    "learned": ["position.kind=learned"],
    "nowhere": ["position.kind=none"],
    "window": ["attention.mask.kind=window", "attention.mask.size=3"],
    "mixed": [
        "layer_kinds.local.attention.mask.kind=window",
        "layer_kinds.local.attention.mask.size=2",
        "layer_kinds.local.position.kind=none",
        'layers.cycle=["local", "default"]',
    ],
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Decoder:
    preset = "textbook" if request.param == "textbook" else "modern"
    return small(*MODELS[request.param], preset=preset)


KERNEL = pytest.mark.parametrize("kernel", KERNELS)


class TestPadding:
    def test_gradients_with_padding_are_finite(self, model: Decoder) -> None:
        real = torch.tensor([[False, True, True], [False, False, False]])
        model(tokens(2, 3), padding_mask=real).logits.sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


class TestPositions:
    def test_the_default_is_counting(self, model: Decoder) -> None:
        row = tokens(2, 6)
        given = torch.arange(6)
        torch.testing.assert_close(logits(model, row), logits(model, row, position_ids=given))
        rows = given.expand(2, 6)
        torch.testing.assert_close(logits(model, row), logits(model, row, position_ids=rows))

    def test_given_positions_count(self) -> None:
        row = tokens(1, 6)
        spread = torch.tensor([0, 1, 2, 9, 10, 11])
        for words, differs in [
            ([], True),
            (["position.kind=learned"], True),
            (["position.kind=none"], False),
        ]:
            model = small(*words)
            same = torch.allclose(logits(model, row), logits(model, row, position_ids=spread))
            assert same != differs

    def test_rope_knows_distances_alone(self) -> None:
        row, model = tokens(1, 6), small()
        moved = logits(model, row, position_ids=torch.arange(100, 106))
        torch.testing.assert_close(logits(model, row), moved, rtol=1e-5, atol=1e-5)

    def test_learned_positions_end(self) -> None:
        model = small("position.kind=learned")
        with pytest.raises(
            ValueError, match="found 17 tokens; expected at most context_length = 16"
        ):
            model(tokens(1, 17))
        assert logits(small(), tokens(1, 17)).shape == (1, 17, 32)


def visible(model: Decoder, length: int, **given: Any) -> Tensor:
    """Return which tokens (columns) the logits at each place (rows) depend on, by their gradients."""
    row = tokens(1, length)
    inputs: list[Tensor] = []
    hook = model.embedding.register_forward_hook(
        lambda _, __, out: inputs.append(out.detach().requires_grad_()) or inputs[0]
    )
    found = model(row, **given).logits
    hook.remove()
    seen = []
    for i in range(length):
        (gradient,) = torch.autograd.grad(found[0, i].square().sum(), inputs[0], retain_graph=True)
        seen.append(gradient[0].abs().sum(-1) > 0)
    return torch.stack(seen)


class TestVisibility:
    @KERNEL
    @pytest.mark.parametrize("preset", ["modern", "textbook"])
    def test_causal(self, preset: str, kernel: str) -> None:
        model = small(preset=preset).use_kernel(kernel)
        assert torch.equal(visible(model, 7), torch.ones(7, 7).tril().bool())

    def test_local_and_global_layers(self) -> None:
        *words, mixed = MODELS["mixed"]
        only_local = small(*words, 'layers.cycle=["local"]')
        assert torch.equal(visible(only_local, 6), torch.ones(6, 6).tril().triu(-2).bool())
        assert torch.equal(visible(small(*words, mixed), 6), torch.ones(6, 6).tril().bool())


class TestLayerKinds:
    def test_each_layer_has_the_mask_and_rotation_of_its_kind(self) -> None:
        model = small(*MODELS["mixed"])
        local, default = model.mixers()
        assert local.rotary is None
        assert default.rotary.value is model.rotaries["rotary_0"]
        assert local.pattern.value.spec.model_dump() == {"kind": "window", "size": 2}
        assert default.pattern.value.spec.kind == "causal"

    def test_what_is_alike_is_shared(self) -> None:
        model = small(
            "num_layers=6",
            "layer_kinds.far.position.theta=500.0",
            'layers.cycle=["default", "far"]',
        )
        assert list(model.rotaries) == ["rotary_0", "rotary_1"]
        assert [mixer.rotary.name for mixer in model.mixers()] == ["rotary_0", "rotary_1"] * 3
        assert list(model.masks) == ["mask_0"]

    def test_layers_may_lack_a_branch(self) -> None:
        model = small(
            "num_layers=3", "layer_kinds.a.attention.kind=none", "layer_kinds.b.feedforward.kind=none",
            'layers.cycle=["a", "b", "default"]',
        )  # fmt: skip
        first, second, third = model.layers
        assert first.branches == ("feedforward",)
        assert second.branches == ("attention",)
        assert list(first.residual.norms) == ["feedforward"]
        assert list(third.residual.norms) == ["attention", "feedforward"]
        assert logits(model, tokens(1, 5)).isfinite().all()

    @pytest.mark.parametrize(("last", "normed"), [("post", False), ("pre", True)])
    def test_a_norm_follows_the_layers_where_the_last_leaves_none(
        self, last: str, normed: bool
    ) -> None:
        model = small(f"layer_kinds.last.residual.kind={last}", 'layers.suffix=["last"]')
        assert ("norm.weight" in model.state_dict()) == normed


class TestDropout:
    @pytest.mark.parametrize("path", ["embedding", "attention", "feedforward", "residual"])
    def test_it_acts_in_training_alone(self, path: str) -> None:
        model, plain = small(f"{path}.dropout=0.5"), small()
        row = tokens(1, 6)
        assert torch.equal(logits(model, row), logits(plain, row))
        model.train()
        assert not torch.allclose(logits(model, row), logits(plain, row))


def test_a_tied_head_reads_with_the_embedding() -> None:
    model, states = small("head.tied=true"), []
    model.norm.register_forward_hook(lambda _, __, out: states.append(out))
    found = logits(model, tokens(1, 6))
    torch.testing.assert_close(found, states[0] @ model.embedding.weight.T)


def test_a_soft_cap_bounds_the_logits() -> None:
    free, capped = (logits(small(f"head.softcap={cap}"), tokens(1, 6)) for cap in ("none", "0.5"))
    assert free.abs().max() > 0.5 > capped.abs().max()
    torch.testing.assert_close(capped, 0.5 * (free / 0.5).tanh())


class TestDtypes:
    def test_float64_is_the_same_model(self, model: Decoder) -> None:
        row = tokens(2, 12)
        exact = logits(model, row)
        assert exact.dtype == torch.float64
        torch.testing.assert_close(logits(model.float(), row).double(), exact, rtol=1e-3, atol=1e-4)

    def test_a_model_in_bfloat16(self, model: Decoder) -> None:
        row = tokens(2, 12)
        exact = logits(model, row)
        found = logits(model.bfloat16(), row)
        assert found.dtype == torch.bfloat16
        assert (found.double() - exact).norm() < 0.05 * exact.norm()

    def test_bfloat16_autocast_has_the_gradients_of_float32(self, model: Decoder) -> None:
        model.float().train()
        row = tokens(4, 13)

        def gradients(narrow: bool) -> list[Tensor]:
            with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
                found = model(row[:, :-1]).logits
            assert found.dtype == (torch.bfloat16 if narrow else torch.float32)
            loss = F.cross_entropy(found.float().flatten(0, 1), row[:, 1:].flatten())
            return list(torch.autograd.grad(loss, list(model.parameters())))

        found, expected = gradients(True), gradients(False)
        # A key's bias moves all scores of a query alike: its gradient is nothing but rounding.
        rounding = 1e-3 * max(float(exact.norm()) for exact in expected)
        for ours, exact in zip(found, expected, strict=True):
            assert ours.dtype == torch.float32
            assert (ours - exact).norm() < 0.06 * exact.norm() + rounding


def test_models_can_be_copied() -> None:
    model = small()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for rotary in model.rotaries.values():
            rotary.frequencies.zero_()
    row = tokens(1, 5)
    torch.testing.assert_close(logits(twin, row), logits(small(), row))


def test_the_spec_is_that_of_the_model() -> None:
    spec = ModelSpec(dim=64, num_layers=2)
    assert build(spec, vocab_size=100).spec == spec.resolved(100)
    assert build(spec, vocab_size=100).spec.vocab_size == 128


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("modern", False), ("window", True), ("mixed", False), ("learned", False)],
)
def test_a_text_may_go_on_where_no_layer_reaches_back_without_limit(
    choice: str, expected: bool
) -> None:
    assert small(*MODELS[choice]).can_generate_indefinitely is expected


def test_a_head_of_rows_reads_what_two_streams_give() -> None:
    """Reversible layers end with both their streams, side by side."""
    spec = ModelSpec(dim=16, num_layers=2, vocab_size=32, context_length=8).override(
        "attention.num_heads=2", "residual.kind=reversible", "sequence_head.kind=pooled"
    )
    model = build(spec)
    tokens = torch.zeros(3, 8, dtype=torch.long)
    assert model(tokens).sequence_logits.shape == (3, 2)
    assert sum(counted(model).parts.values()) == sum(p.numel() for p in model.parameters())
