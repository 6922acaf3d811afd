"""Every rule between axes has an example here that breaks it and no other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings

from archwright.spec.attention import Attention
from archwright.spec.choice import ModelSizes
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import given_model, load
from archwright.spec.rules import RULES, SUSPICIONS, Rule, enforce, suspicions
from tests.sentences import Sentences, lines_of
from tests.strategies import model_specs

GOOD = ModelSpec(dim=512, num_layers=4, vocab_size=64)

BROKEN: dict[str, list[str]] = {
    "not_too_many_parameters": ["feedforward.hidden_dim=16777216", "dim=8388608", "num_layers=8"],
    "keys_are_shared": ["attention.shares_kv=true"],
    "shared_layers_are_dense": ["layers.shared=true", "feedforward.kind=experts"],
    "streams_run_through": ["residual.kind=reversible", "layer_kinds.other.residual.kind=pre"],
    "layers_are_reversible": ["residual.kind=reversible", "residual.embedding_skip=true"],
    "rope_needs_pairs": ["position.fraction=0.01"],
    "longrope_divides_each_pair": [
        "position.scaling.kind=longrope",
        "position.scaling.long=[1.0, 2.0]",
    ],
    "buckets_widen": ["position.kind=t5", "position.max_distance=16"],
    "mup_is_dense": ["feedforward.kind=experts", "init.kind=mup", "attention.scale.kind=inverse"],
    "positions_reach_attention": ["attention.kind=running_mean"],
    "sums_have_distances": ["attention.kind=transient_global"],
    "absolute_positions_are_global": ["layer_kinds.local.position.kind=learned"],
    "layer_names_exist": ["layer_kinds.local.norm.kind=layer", 'layers.cycle=["locl", "default"]'],
    "arrangement_fits": [
        'layers.prefix=["default", "default", "default"]',
        'layers.suffix=["default", "default"]',
    ],
    "layer_has_a_branch": ["attention.kind=none", "feedforward.kind=none"],
    "an_encoder_is_read": ["encoder.kind=stack"],
    "rows_are_judged_by_one_stack": [
        "encoder.kind=stack",
        "cross_attention.kind=softmax",
        "sequence_head.kind=pooled",
    ],
    "a_head_of_replaced_tokens_stands_alone": ["head.predicts=replaced", "head.tied=true"],
    "a_generator_is_found_out": ["generator.kind=stack"],
    "shared_tables_are_as_wide": [
        *("encoder.kind=stack", "cross_attention.kind=softmax", "encoder.dim=64")
    ],
}

CONTRADICTIONS: dict[str, list[str]] = {
    "kv_heads_divide_heads": ["attention.num_heads=8", "attention.num_kv_heads=3"],
    "heads_divide_dim": ["attention.num_heads=7", "position.kind=none"],
    "value_gate_reads_x": [
        "attention.value_embedding.kind=gated",
        "attention.value_embedding.channels=513",
    ],
    "global_tokens_exist": ["attention.kind=longformer", "attention.mask.kind=causal"],
    "distances_widen": [
        "position.kind=none",
        "attention.kind=disentangled",
        "attention.num_buckets=512",
    ],
    "llama3_has_a_stretch": [
        "position.scaling.kind=llama3",
        "position.scaling.low_freq_factor=5.0",
    ],
    "xielu_starts_above_beta": ["feedforward.kind=xielu", "feedforward.alpha_negative=0.4"],
    "blocks_fit": [
        *("position.kind=t5", "attention.kind=transient_global", "attention.block_size=300")
    ],
    "one_hidden_width": ["feedforward.ratio=4", "feedforward.hidden_dim=1024"],
    "enough_experts": ["feedforward.kind=experts", "feedforward.top_k=9"],
    "groups_divide_experts": ["feedforward.kind=experts", "feedforward.num_groups=3"],
    "groups_hold_enough": [
        "feedforward.kind=experts",
        "feedforward.num_groups=4",
        "feedforward.top_k=3",
    ],
    "groups_have_two": [
        "feedforward.kind=experts",
        "feedforward.num_groups=8",
        "feedforward.top_groups=2",
        "feedforward.group_score=top_two",
    ],
    "routing_chooses_alone": [
        "feedforward.kind=experts",
        "feedforward.routing.kind=sparsemixer",
        "feedforward.selection_bias=true",
    ],
    "grids_fit": ["position.kind=axial", "position.shape=[2, 3]"],
}
"""Options of one choice that do not fit; the rule `options_fit` reports each with its path."""

SUSPICIOUS: dict[str, list[str]] = {
    "mup_with_latents": ["attention.kind=latent", "init.kind=mup", "attention.scale.kind=inverse"],
    "odd_head_dim": ["attention.head_dim=60"],
    "odd_shape": ["num_layers=64"],
    "odd_hidden_dim": ["feedforward.hidden_dim=512"],
    "constant_weights": ["feedforward.kind=experts", "feedforward.top_k=1"],
    "odd_vocabulary": ["vocab_size=1000"],
    "large_tied_embedding": ["head.tied=true", "init.embedding_std=1.0"],
    "mup_without_inverse_scale": ["init.kind=mup"],
    "idle_window": ["attention.mask.kind=window", "attention.mask.size=256"],
    "source_of_nothing": ["sources.norm=known", "sources.attention.num_heds=paper"],
}


@pytest.fixture(autouse=True)
def outside(visitors: None) -> None:
    """An attention from outside the package, which computes no positions."""

    class RunningMean(Attention):
        kind: Literal["running_mean"] = "running_mean"


def test_proportional_pairs_span_the_head() -> None:
    """Of heads of 12, a quarter would be 3 coordinates, but is one pair of six."""
    words = ["attention.head_dim=12", "position.fraction=0.25"]
    with pytest.raises(UserError, match='found "rope" over 3 coordinates'):
        enforce(GOOD.override(*words))
    enforce(GOOD.override(*words, "position.scaling.kind=proportional"))


def test_mup_scales_no_table_of_another_width() -> None:
    mup = ("init.kind=mup", "attention.scale.kind=inverse")
    with pytest.raises(UserError, match=r"^embedding\.dim: found 32 with init\.kind \"mup\""):
        load("modern").override(*mup, "embedding.dim=32").resolved()


def test_the_good_model_is_good() -> None:
    enforce(GOOD)
    assert suspicions(GOOD) == []


@pytest.mark.parametrize("name", [*BROKEN, *CONTRADICTIONS])
def test_each_rule_is_broken_by_its_example_alone(name: str, sentences: Sentences) -> None:
    broken = GOOD.override(*(BROKEN | CONTRADICTIONS)[name])
    rule = name if name in BROKEN else "options_fit"
    assert [r.name for r in RULES if list(r.check(broken))] == [rule]
    with pytest.raises(UserError) as caught:
        enforce(broken)
    sentences.check("rules", name, caught.value.lines)
    with pytest.raises(UserError):
        broken.resolved()


def test_contradictions_inside_a_choice_of_a_layer_or_a_second_stack_have_their_path() -> None:
    inner = "value_embedding.channels=513"
    words = ["attention.value_embedding.kind=gated", "encoder.kind=stack"]
    words += ["cross_attention.kind=softmax", "cross_attention.num_kv_heads=3"]
    words += [f"layer_kinds.far.attention.{inner}", "encoder.feedforward.ratio=2"]
    with pytest.raises(UserError) as caught:
        enforce(GOOD.override(*words, "encoder.feedforward.hidden_dim=64"))
    assert [line.split(": found")[0] for line in caught.value.lines] == [
        "cross_attention.num_kv_heads",
        "layer_kinds.far.attention.value_embedding.channels",
        "encoder.feedforward.ratio",
    ]


def test_a_choice_from_outside_has_contradictions_of_its_own() -> None:
    class Grouped(Attention):
        kind: Literal["grouped"] = "grouped"
        num_heads: int = 3
        num_key_heads: int = 2

        def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
            if self.num_heads % self.num_key_heads:
                yield f"num_key_heads: found {self.num_key_heads}; expected a divisor of {self.num_heads}"

    with pytest.raises(UserError) as caught:
        GOOD.override("attention.kind=grouped", "position.kind=none").resolved()
    assert caught.value.lines == ("attention.num_key_heads: found 2; expected a divisor of 3",)


@pytest.mark.parametrize("rule", SUSPICIONS, ids=lambda rule: rule.name)
def test_each_suspicion_is_raised_by_its_example_alone(rule: Rule, sentences: Sentences) -> None:
    odd = GOOD.override(*SUSPICIOUS[rule.name])
    enforce(odd)
    assert [r.name for r in SUSPICIONS if list(r.check(odd))] == [rule.name]
    sentences.check("suspicions", rule.name, suspicions(odd))


def test_every_rule_has_a_sentence_and_a_name_of_its_own() -> None:
    rules = [*RULES, *SUSPICIONS]
    assert {rule.name for rule in rules} == {*BROKEN, "options_fit", *SUSPICIOUS}
    assert BROKEN.keys() | CONTRADICTIONS.keys() == lines_of("rules").keys()
    assert SUSPICIOUS.keys() == lines_of("suspicions").keys()
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.sentence.endswith(".") for rule in rules)


def test_all_broken_rules_are_said_at_once() -> None:
    with pytest.raises(UserError) as caught:
        enforce(
            GOOD.override("encoder.kind=stack", "attention.num_kv_heads=3", "layers.cycle=['x']")
        )
    assert [line.split(":")[0] for line in caught.value.lines] == [
        "attention.num_kv_heads",
        "layers.cycle",
        "encoder.kind",
    ]


def test_a_layer_kind_repeats_no_mistake_of_the_default_layer() -> None:
    kinds = ["layer_kinds.a.norm.kind=layer", "layer_kinds.b.attention.num_kv_heads=5"]
    with pytest.raises(UserError) as caught:
        enforce(GOOD.override("attention.num_kv_heads=3", *kinds))
    assert caught.value.lines == (
        "attention.num_kv_heads: found 3; expected a divisor of num_heads = 8",
        "layer_kinds.b.attention.num_kv_heads: found 5; expected a divisor of num_heads = 8",
    )


def test_a_rule_looks_at_layer_kinds_too() -> None:
    spec = GOOD.override("layer_kinds.a.attention.num_kv_heads=3")
    with pytest.raises(UserError, match=r"^layer_kinds\.a\.attention\.num_kv_heads: found 3"):
        enforce(spec)


@pytest.mark.slow
@settings(max_examples=60)
@given(model_specs())
def test_what_no_rule_forbids_resolves(spec: ModelSpec) -> None:
    broken = [line for rule in RULES for line in rule.check(spec)]
    if broken:
        with pytest.raises(UserError):
            spec.resolved()
    else:
        assert spec.resolved().num_layers == spec.num_layers


def test_a_limit_may_be_reached() -> None:
    enforce(
        ModelSpec().override(
            "feedforward.kind=experts", "feedforward.num_experts=4", "feedforward.top_k=4"
        )
    )
    words = ("attention.num_heads=8", "attention.num_kv_heads=8", "attention.head_dim=2")
    enforce(ModelSpec().override(*words))


def test_what_was_given_is_not_suspected(tmp_path: Path) -> None:
    """A file upon a file upon a preset whose vocabulary is no multiple of 64."""
    published = load("gpt-2")
    assert suspicions(published)
    assert suspicions(published, published) == []
    (changed,) = suspicions(published.override("vocab_size=1000"), published)
    assert changed.startswith("vocab_size is 1000")
    (tmp_path / "first.toml").write_text('base = "gpt-2"\nvocab_size = 1000\n', "utf-8")
    (tmp_path / "second.toml").write_text('base = "first.toml"\n', "utf-8")
    assert given_model(tmp_path / "second.toml") == published
    assert given_model("gpt-2") == published
