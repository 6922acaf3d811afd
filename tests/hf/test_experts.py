"""What families of mixtures alone have to say: which layers have experts, and how these are counted."""

import math
from typing import Any

import pytest

from archwright.hf.exporting import exportable, fit
from archwright.hf.families import FAMILIES
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec

SMALL = {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "head_dim": 16}
EVEN = {"num_key_value_heads": 2, "max_position_embeddings": 64, "vocab_size": 128}


def spec(kind: str, **config: Any) -> ModelSpec:
    return FAMILIES[kind].spec({**SMALL, **EVEN, **config})


def with_experts(model: ModelSpec) -> list[int]:
    return [i for i in range(model.num_layers) if model.layer(i).feedforward.kind == "experts"]


ARRANGED = [
    ("qwen2_moe", {}, [0, 1, 2, 3, 4, 5]),
    ("qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [3]}, [1, 5]),
    ("ernie4_5_moe", {"moe_layer_end_index": 3, "moe_layer_interval": 2}, [1, 3]),
    ("ernie4_5_moe", {"moe_layer_start_index": 2}, [2, 3, 4, 5]),
    ("glm4_moe", {"first_k_dense_replace": 2}, [2, 3, 4, 5]),
    ("hy_v3", {}, [1, 2, 3, 4, 5]),
    ("exaone_moe", {"mlp_layer_types": ["dense", "sparse"] * 3}, [1, 3, 5]),
    ("afmoe", {"num_dense_layers": 5}, [5]),
    ("cohere2_moe", {"first_k_dense_replace": 1}, [1, 2, 3, 4, 5]),
    ("llama4_text", {"interleave_moe_layer_step": 3}, [2, 5]),
    ("llama4_text", {"moe_layers": [0, 4]}, [0, 4]),
]


@pytest.mark.parametrize(("kind", "config", "places"), ARRANGED)
def test_experts_stand_where_the_config_says_and_are_written_there(
    kind: str, config: dict[str, Any], places: list[int]
) -> None:
    model = spec(kind, **config)
    assert with_experts(model) == places
    assert with_experts(FAMILIES[kind].spec(FAMILIES[kind].config(model))) == places
    assert not fit(model, FAMILIES[kind]).blocking


def test_a_key_counts_by_either_of_its_words() -> None:
    published, saved = spec("qwen3_moe", num_experts=8), spec("qwen3_moe", num_local_experts=8)
    assert published == saved
    assert published.feedforward.num_experts == 8  # type: ignore[attr-defined]


def test_layers_behind_the_last_are_left_out_and_none_before() -> None:
    family = FAMILIES["deepseek_v3"]
    assert family.ignores("model.layers.6.enorm.weight", 6)
    assert not family.ignores("model.layers.5.enorm.weight", 6)
    assert not family.ignores("model.norm.bias", 6)
    assert FAMILIES["llama"].ignores("model.layers.0.self_attn.rotary_emb.inv_freq", 6)


def test_shared_experts_are_one_as_wide_as_all() -> None:
    model = spec("glm4_moe", n_shared_experts=3, moe_intermediate_size=20)
    layer = model.layer(5).feedforward
    assert layer.shared == "added"  # type: ignore[attr-defined]
    assert layer.shared_hidden_dim == 60  # type: ignore[attr-defined]
    assert FAMILIES["glm4_moe"].config(model)["n_shared_experts"] == 3


def test_balance_is_counted_over_all_choices_there_and_over_their_shares_here() -> None:
    model = spec("mixtral", router_aux_loss_coef=0.02, num_experts_per_tok=3)
    assert model.feedforward.balance_loss == pytest.approx(0.06)  # type: ignore[attr-defined]
    assert FAMILIES["mixtral"].config(model)["router_aux_loss_coef"] == pytest.approx(0.02)


YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 16}


@pytest.mark.parametrize("weight", [1.0, 0.707, 0.1])
def test_scores_grow_with_what_latent_attention_is_stretched_by(weight: float) -> None:
    family = FAMILIES["deepseek_v3"]
    told = YARN | {"mscale": weight, "mscale_all_dim": weight}
    model = spec("deepseek_v3", rope_scaling=told)
    growth = (0.1 * weight * math.log(40) + 1) ** 2
    scale = model.attention.scale.value  # type: ignore[attr-defined]
    assert scale == pytest.approx(growth / math.sqrt(128 + 64), rel=1e-12)
    assert family.config(model)["rope_parameters"]["mscale_all_dim"] == weight
    assert family.spec(family.config(model)).attention == model.attention


def test_a_fixed_alpha_is_another_base() -> None:
    told = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}
    position = spec("hunyuan_v1_moe", rope_scaling=told, head_dim=128).position
    assert position.scaling.kind == "none"  # type: ignore[attr-defined]
    assert position.theta == pytest.approx(1e4 * 1000 ** (128 / 126))  # type: ignore[attr-defined]


def test_the_base_inside_the_attention_of_old_files_counts() -> None:
    model = FAMILIES["dbrx"].spec({"attn_config": {"rope_theta": 500000}})
    assert model.position.theta == 500_000  # type: ignore[attr-defined]
    assert model.attention.num_kv_heads == 1  # type: ignore[attr-defined]
    both = {"attn_config": {"rope_theta": 7}, "rope_parameters": {"rope_theta": 9.0}}
    assert FAMILIES["dbrx"].spec(both).position.theta == 9  # type: ignore[attr-defined]


LONG = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 8}
REFUSED = [
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv: found 8.0"),
    ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method: found 'noaux_tc'"),
    ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func: found 'softmax'"),
    ("hunyuan_v1_moe", {"moe_topk": [1, 2]}, r"moe_topk: found \[1, 2\]"),
    ("hunyuan_v1_moe", {"num_shared_expert": [1, 2]}, "num_shared_expert"),
    ("ernie4_5_moe", {"use_bias": True}, "use_bias: found True"),
    ("hy_v3", {"mlp_bias": True}, "mlp_bias: found True"),
    ("exaone_moe", {"mlp_layer_types": ["dense"]}, "types of 1 layers; expected 6"),
    ("cohere2_moe", {"mlp_layer_types": ["dense"]}, "found 1 layers; expected 6"),
    ("phimoe", {"rope_scaling": LONG | {"short_mscale": 1.1}}, "long_mscale: found"),
    ("phimoe", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_type: found 'yarn'"),
    ("phimoe", {"num_experts_per_tok": 1}, "num_experts_per_tok: found 1"),
    ("dbrx", {"tie_word_embeddings": True}, "tie_word_embeddings: found True"),
]


@pytest.mark.parametrize(("kind", "config", "said"), REFUSED)
def test_what_cannot_be_run_is_refused(kind: str, config: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        spec(kind, **config)


def test_biases_that_a_class_does_not_have_are_not_written() -> None:
    model = spec("mixtral").override("attention.bias=true")
    assert "attention.bias" in fit(model.resolved(), FAMILIES["mixtral"]).blocking[0]
    with pytest.raises(UserError, match="no published family"):
        exportable(model.override("feedforward.router_weight_on=input"))


def test_a_bias_that_training_moves_is_written() -> None:
    spare = spec("glm4_moe", first_k_dense_replace=0).override("feedforward.selection_bias=false")
    assert fit(spare.resolved(), FAMILIES["glm4_moe"]).blocking
    moved = spare.override("feedforward.selection_bias_update_rate=0.001").resolved()
    assert not fit(moved, FAMILIES["glm4_moe"]).blocking
