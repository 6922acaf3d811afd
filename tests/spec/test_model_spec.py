import math

import pytest
from hypothesis import assume, given, settings

from archwright.spec.errors import UserError
from archwright.spec.fingerprint import differing
from archwright.spec.model_spec import Arrangement, EncoderStack, ModelSpec
from archwright.spec.norms import LayerNorm, RMSNorm
from archwright.spec.overrides import flatten, override
from tests.strategies import model_specs


class TestResolved:
    @pytest.mark.slow
    @settings(max_examples=60)
    @given(model_specs())
    def test_it_has_no_auto_and_resolves_to_itself(self, spec: ModelSpec) -> None:
        try:
            resolved = spec.resolved()
        except UserError:
            assume(False)
        assert "auto" not in flatten(resolved.model_dump()).values()
        assert resolved.resolved() == resolved

    @pytest.mark.parametrize(
        ("given_", "num_heads", "num_kv_heads", "head_dim"),
        [
            ([], 8, 8, 64),
            (["attention.num_heads=4"], 4, 4, 128),
            (["attention.head_dim=32"], 16, 16, 32),
            (["attention.head_dim=48"], 10, 10, 48),
            (["attention.num_heads=4", "attention.head_dim=16", "attention.num_kv_heads=1"], 4, 1, 16),
            (["dim=200"], 2, 2, 100),  # three heads of 64 would not share out 200
            (["dim=40"], 1, 1, 40),
            (["dim=16", "attention.head_dim=64"], 1, 1, 64),
        ],
    )  # fmt: skip
    def test_heads(
        self, given_: list[str], num_heads: int, num_kv_heads: int, head_dim: int
    ) -> None:
        attention = ModelSpec(dim=512).override(*given_).resolved().attention.model_dump()
        found = attention["num_heads"], attention["num_kv_heads"], attention["head_dim"]
        assert found == (num_heads, num_kv_heads, head_dim)

    @pytest.mark.parametrize(
        ("kind", "dim", "hidden"), [("relu", 128, 512), ("swiglu", 128, 384), ("swiglu", 96, 256)]
    )
    def test_hidden_width(self, kind: str, dim: int, hidden: int) -> None:
        spec = ModelSpec(dim=dim).override(f"feedforward.kind={kind}").resolved()
        assert spec.feedforward.model_dump()["hidden_dim"] == hidden

    @pytest.mark.parametrize(
        ("dim", "ratio", "hidden"),
        [(64, "4", 256), (52, "8", 416), (64, "2.7", 176), (20, "0.01", 8), (64, "none", 192)],
    )
    def test_hidden_width_by_ratio(self, dim: int, ratio: str, hidden: int) -> None:
        spec = ModelSpec(dim=dim).override(f"feedforward.ratio={ratio}")
        assert spec.resolved().feedforward.model_dump()["hidden_dim"] == hidden
        mixture = ModelSpec(dim=dim).override(
            "feedforward.kind=experts", f"feedforward.expert.ratio={ratio}"
        )
        resolved = mixture.resolved().feedforward.model_dump()
        assert resolved["expert"]["hidden_dim"] == resolved["shared_hidden_dim"] == hidden

    def test_a_ratio_of_some_layers_and_in_narrower_models(self) -> None:
        spec = ModelSpec(dim=512).override(
            "feedforward.ratio=3", "layer_kinds.wide.feedforward.ratio=6", 'layers.cycle=["wide", "default"]'
        )  # fmt: skip
        small = spec.tiny()
        wide, default = (small.resolved().layer(i).feedforward for i in (0, 1))
        assert (wide.model_dump()["hidden_dim"], default.model_dump()["hidden_dim"]) == (384, 192)

    def test_without_a_ratio_the_hash_is_what_it_was(self) -> None:
        assert ModelSpec().override("feedforward.ratio=none").hash() == ModelSpec().hash()
        assert ModelSpec().override("feedforward.ratio=2").hash() != ModelSpec().hash()
        assert "ratio" not in str(differing(ModelSpec().resolved()))

    def test_the_vocabulary_follows_the_tokenizer(self) -> None:
        assert ModelSpec().resolved(1000).vocab_size == 1024
        assert ModelSpec().resolved(1024).vocab_size == 1024
        assert ModelSpec(vocab_size=7).resolved(1000).vocab_size == 7
        assert ModelSpec().resolved().vocab_size == 4096

    @pytest.mark.parametrize(("tied", "std"), [("false", 1.0), ("true", 1 / 16)])
    def test_embeddings_are_small_where_they_are_the_head(self, tied: str, std: float) -> None:
        spec = ModelSpec(dim=256).override(f"head.tied={tied}").resolved()
        assert spec.init.model_dump()["embedding_std"] == std

    @pytest.mark.parametrize(("given_", "width"), [([], 48), (["embedding.dim=32"], 32)])
    def test_a_table_of_the_encoder_alone_is_as_wide_as_the_encoder(
        self, given_: list[str], width: int
    ) -> None:
        """Unless the decoder's table has a width of its own, which counts for both."""
        spec = ModelSpec(dim=64).override(
            "encoder.kind=stack", "cross_attention.kind=softmax", "encoder.dim=48", "encoder.embeddings=own", *given_
        )  # fmt: skip
        for one in (spec, spec.resolved()):
            assert one.encoder_model is not None
            assert one.encoder_model.embedding_dim == width

    def test_numbers_that_follow_from_the_depth(self) -> None:
        """Wang et al., 2022, figure 2, of a decoder alone."""
        spec = ModelSpec(num_layers=18).override("residual.kind=deepnorm").resolved()
        assert spec.residual.model_dump()["alpha"] == pytest.approx(36**0.25)
        assert spec.residual.model_dump()["gain"] == pytest.approx(144**-0.25)

    @pytest.mark.parametrize(
        ("kind", "expected"),
        [("yarn", 0.1 * math.log(4) + 1), ("longrope", math.sqrt(1 + math.log(4) / math.log(64)))],
    )
    def test_cosines_and_sines_of_long_texts(self, kind: str, expected: float) -> None:
        words = (f"position.scaling.kind={kind}", "position.scaling.factor=4")
        spec = ModelSpec(context_length=64).override(*words).resolved()
        scaling = spec.position.model_dump()["scaling"]
        assert scaling["attention_factor"] == pytest.approx(expected)
        assert scaling["original_length"] == 64


class TestLayers:
    def test_the_cycle_repeats_between_prefix_and_suffix(self) -> None:
        layers = Arrangement(prefix=("a",), cycle=("b", "c"), suffix=("d",))
        assert layers.names(7) == ("a", "b", "c", "b", "c", "b", "d")
        assert layers.names(2) == ("a", "d")
        assert Arrangement().names(3) == ("default",) * 3

    def test_a_layer_has_what_its_kind_says_and_else_the_default(self) -> None:
        spec = ModelSpec(num_layers=3).override(
            "norm.kind=layer", "layer_kinds.local.attention.mask.kind=window",
            "layer_kinds.local.norm.kind=rms", 'layers.cycle=["local", "default"]',
        )  # fmt: skip
        assert [spec.layer(i).attention.model_dump()["mask"]["kind"] for i in range(3)] == [
            "window", "causal", "window",
        ]  # fmt: skip
        assert [spec.layer(i).norm for i in range(3)] == [RMSNorm(), LayerNorm(), RMSNorm()]
        assert spec.layer(0).feedforward == spec.feedforward

    def test_an_encoder_is_a_stack_as_well(self) -> None:
        spec = ModelSpec().override(
            "encoder.kind=stack", "encoder.num_layers=2", "encoder.layer_kinds.a.norm.kind=layer",
            'encoder.layers.cycle=["default", "a"]',
        )  # fmt: skip
        assert isinstance(spec.encoder, EncoderStack)
        assert [spec.encoder.layer(i).norm for i in range(2)] == [RMSNorm(), LayerNorm()]

    def test_asking_for_layers_changes_no_equality(self) -> None:
        asked, fresh = ModelSpec(), ModelSpec()
        assert asked.layers_by_kind
        assert asked == fresh
        assert override(asked, []) == fresh
