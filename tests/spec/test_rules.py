"""Every rule between axes has an example here that breaks it and no other."""

import pytest
from hypothesis import given, settings

from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.rules import RULES, SUSPICIONS, Rule, enforce, suspicions
from tests.strategies import model_specs

GOOD = ModelSpec(dim=512, num_layers=4, vocab_size=64)

BROKEN: dict[str, tuple[list[str], str]] = {
    "not_too_many_parameters": (
        ["feedforward.hidden_dim=16777216", "dim=8388608", "num_layers=8"],
        "feedforward: the model has about 1.7e+15 parameters; expected at most 1e15",
    ),
    "kv_heads_divide_heads": (
        ["attention.num_heads=8", "attention.num_kv_heads=3"],
        "attention.num_kv_heads: found 3; expected a divisor of num_heads = 8",
    ),
    "heads_divide_dim": (
        ["attention.num_heads=7", "position.kind=none"],
        "attention.num_heads: found 7; expected a divisor of dim = 512, or a given attention.head_dim",
    ),
    "rope_needs_pairs": (
        ["position.fraction=0.01"],
        'position.kind: found "rope" over 0 coordinates of heads of 64; expected an even number '
        "above 0: change attention.head_dim or position.fraction",
    ),
    "longrope_divides_each_pair": (
        ["position.scaling.kind=longrope", "position.scaling.long=[1.0, 2.0]"],
        "position.scaling.long: found 2 numbers; expected 32, one for each pair of coordinates, or none",
    ),
    "llama3_has_a_stretch": (
        ["position.scaling.kind=llama3", "position.scaling.low_freq_factor=5.0"],
        "position.scaling.high_freq_factor: found 4; expected at least low_freq_factor = 5",
    ),
    "t5_buckets_widen": (
        ["position.kind=t5", "position.max_distance=16"],
        "position.max_distance: found 16 with num_buckets = 32; expected more than 16, and two buckets "
        "or more for each direction",
    ),
    "xielu_starts_above_beta": (
        ["feedforward.kind=xielu", "feedforward.alpha_negative=0.4"],
        "feedforward.alpha_negative: found 0.4; expected more than beta = 0.5",
    ),
    "one_hidden_width": (
        ["feedforward.ratio=4", "feedforward.hidden_dim=1024"],
        "feedforward.ratio: found 4 beside hidden_dim = 1024; expected one of the two: set "
        "feedforward.hidden_dim=auto or feedforward.ratio=none",
    ),
    "enough_experts": (
        ["feedforward.kind=experts", "feedforward.top_k=9"],
        "feedforward.top_k: found 9; expected at most num_experts = 8",
    ),
    "groups_divide_experts": (
        ["feedforward.kind=experts", "feedforward.num_groups=3"],
        "feedforward.num_groups: found 3; expected a divisor of num_experts = 8",
    ),
    "groups_hold_enough": (
        ["feedforward.kind=experts", "feedforward.num_groups=4", "feedforward.top_k=3"],
        "feedforward.top_groups: found 1; expected 2 to num_groups = 4, for top_k = 3 experts out of "
        "groups of 2",
    ),
    "groups_have_two": (
        [
            "feedforward.kind=experts",
            "feedforward.num_groups=8",
            "feedforward.top_groups=2",
            "feedforward.group_score=top_two",
        ],
        'feedforward.group_score: found "top_two" of groups of one expert; expected "max", or fewer '
        "num_groups",
    ),
    "sparsemixer_chooses_alone": (
        [
            "feedforward.kind=experts",
            "feedforward.scores=sparsemixer",
            "feedforward.selection_bias=true",
        ],
        'feedforward.selection_bias: found true with scores "sparsemixer"; expected false',
    ),
    "mup_is_dense": (
        ["feedforward.kind=experts", "init.kind=mup", "attention.scale.kind=inverse"],
        'feedforward.kind: found "experts" with init.kind "mup", whose rates are not derived for a '
        "router; expected another of the two",
    ),
    "absolute_positions_are_global": (
        ["layer_kinds.local.position.kind=learned"],
        'layer_kinds.local.position.kind: found "learned", which is added to the embedding once; '
        "expected it as position.kind of the model, or another here",
    ),
    "layer_names_exist": (
        ["layer_kinds.local.norm.kind=layer", 'layers.cycle=["locl", "default"]'],
        'layers.cycle: found "locl"; expected one of default, local. Did you mean "local"?',
    ),
    "arrangement_fits": (
        ['layers.prefix=["default", "default", "default"]', 'layers.suffix=["default", "default"]'],
        "num_layers: found 4; expected at least 5, the layers of layers.prefix and layers.suffix",
    ),
    "layer_has_a_branch": (
        ["attention.kind=none", "feedforward.kind=none"],
        'attention.kind: found "none" beside feedforward.kind "none"; expected one branch at least',
    ),
    "no_encoder_yet": (
        ["encoder.kind=stack"],
        'encoder.kind: found "stack"; expected "none": only decoders can be built so far',
    ),
}

SUSPICIOUS: dict[str, tuple[list[str], str]] = {
    "mup_with_latents": (
        ["attention.kind=latent", "init.kind=mup", "attention.scale.kind=inverse"],
        'attention.kind is "latent" with init.kind "mup", whose rates are not derived for maps through a '
        "latent: the best learning rate may move with dim",
    ),
    "odd_head_dim": (
        ["attention.head_dim=60"],
        "attention.head_dim is 60: not a multiple of 8, which slows the kernels down",
    ),
    "odd_shape": (
        ["num_layers=64"],
        "dim / num_layers is 8: published models lie near 128 (about 30 to 250), as deeper or wider "
        "ones learn less from the same compute",
    ),
    "odd_hidden_dim": (
        ["feedforward.hidden_dim=512"],
        'feedforward.hidden_dim is 1 dim: models lie near 2.67 with "swiglu"',
    ),
    "constant_weights": (
        ["feedforward.kind=experts", "feedforward.top_k=1"],
        "feedforward.top_k is 1 with weights that add up to 1: the router learns nothing but balance",
    ),
    "odd_vocabulary": (
        ["vocab_size=1000"],
        "vocab_size is 1000: not a multiple of 64, which slows the output head down",
    ),
    "large_tied_embedding": (
        ["head.tied=true", "init.embedding_std=1.0"],
        "init.embedding_std is 1 with a tied head: first logits will be about 22.6 in size; "
        "auto takes dim^-0.5",
    ),
    "mup_without_inverse_scale": (
        ["init.kind=mup"],
        'attention.scale.kind is "sqrt" with init.kind "mup": the best learning rate stays as heads grow '
        'wider only with "inverse"',
    ),
    "idle_window": (
        ["attention.mask.kind=window", "attention.mask.size=256"],
        "attention.mask.size is 256: no shorter than context_length = 256, so the window hides nothing",
    ),
    "source_of_nothing": (
        ["sources.norm=known", "sources.attention.num_heds=paper"],
        'sources.attention.num_heds is the source of no value. Did you mean "attention.num_heads"?',
    ),
}


def test_proportional_pairs_span_the_head() -> None:
    """Of heads of 12, a quarter would be 3 coordinates, but is one pair of six."""
    words = ["attention.head_dim=12", "position.fraction=0.25"]
    with pytest.raises(UserError, match='found "rope" over 3 coordinates'):
        enforce(GOOD.override(*words))
    enforce(GOOD.override(*words, "position.scaling.kind=proportional"))


def test_the_good_model_is_good() -> None:
    enforce(GOOD)
    assert suspicions(GOOD) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_is_broken_by_its_example_alone(rule: Rule) -> None:
    words, said = BROKEN[rule.name]
    broken = GOOD.override(*words)
    assert [r.name for r in RULES if list(r.check(broken))] == [rule.name]
    with pytest.raises(UserError) as caught:
        enforce(broken)
    assert caught.value.lines == (said,)
    with pytest.raises(UserError):
        broken.resolved()


@pytest.mark.parametrize("rule", SUSPICIONS, ids=lambda rule: rule.name)
def test_each_suspicion_is_raised_by_its_example_alone(rule: Rule) -> None:
    words, said = SUSPICIOUS[rule.name]
    odd = GOOD.override(*words)
    enforce(odd)
    assert [r.name for r in SUSPICIONS if list(r.check(odd))] == [rule.name]
    assert suspicions(odd) == [said]


def test_every_rule_has_a_sentence_and_a_name_of_its_own() -> None:
    rules = [*RULES, *SUSPICIONS]
    assert {rule.name for rule in rules} == {*BROKEN, *SUSPICIOUS}
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
