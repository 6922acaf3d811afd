"""Ai2 OLMo 1 to 3, OLMo Hybrid, and OLMoE and FlexOlmo with experts."""

from archwright.hf.families import common
from archwright.hf.families.common import EXPERTS, balance, by_type, experts, qk_norm
from archwright.hf.families.llama import LLAMA
from archwright.hf.layer_types import CustomPattern, Layers, Listed, Role, every
from archwright.hf.layouts import Chunk
from archwright.hf.lenses import (
    Computed,
    Config,
    Either,
    Field,
    Refuse,
    Set,
    Table,
    Write,
    converted,
)
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused, Mapped, When
from archwright.spec.errors import UserError

OUTPUT_NORM_NAMES: dict[str, Mapped] = {
    "post_attention_layernorm": "residual.norms.{mixer}",
    "post_feedforward_layernorm": "residual.norms.feedforward",
}

OLMOE = LLAMA.derive(
    "olmoe",
    "OlmoeForCausalLM",
    # The norm over all queries has dim weights, so head_dim must be dim / num_heads.
    Set({"attention.head_dim": "auto"}),
    *qk_norm("projection"),
    Refuse("clip_qkv", (None,)),
    *experts("num_experts", "intermediate_size"),
    Field("norm_topk_prob", "feedforward.normalize_weights"),
    balance(),
    layer_keys=EXPERTS,
)

FLEX_OLMO = LLAMA.derive(
    "flex_olmo",
    "FlexOlmoForCausalLM",
    Set({"residual.kind": "output", "norm.scale_in": "input_dtype"}),
    *qk_norm("projection"),
    *experts("num_experts", "intermediate_size"),
    Field("norm_topk_prob", "feedforward.normalize_weights"),
    balance(),
    layer_keys=OUTPUT_NORM_NAMES | EXPERTS,
)

OLMO = LLAMA.derive(
    "olmo",
    "OlmoForCausalLM",
    Set({"residual.kind": "pre", "norm.kind": "layer", "norm.eps": 1e-5}),
    Set({"norm.weight": "none", "norm.bias": False}),
    Field("clip_qkv", "attention.qkv_clip", or_none=True),
)

OLMO2 = LLAMA.derive(
    "olmo2",
    "Olmo2ForCausalLM",
    Set({"residual.kind": "output", "norm.kind": "rms", "norm.scale_in": "float32"}),
    *qk_norm("projection", "float32"),
    layer_keys=OUTPUT_NORM_NAMES,
)

OLMO3 = OLMO2.derive(
    "olmo3",
    "Olmo3ForCausalLM",
    groups=(
        Layers(
            Listed(otherwise=every(4)),
            by_type(
                (Rope(fraction="", layer_type="full_attention"),),
                (Rope(fraction="", layer_type="sliding_attention", scaled=False),),
            ),
        ),
    ),
)


def _types(config: Config, n: int) -> list[str]:
    """Return the mixer types; the class needs both.

    Raises:
        UserError: All layers are of one type.
    """
    types = Listed(otherwise=every(4, "linear_attention")).read(config, n)
    if config["layer_types"] is None and "full_attention" not in types:
        types[-1] = "full_attention"
    if len(set(types)) == 1:
        raise UserError(
            f"config.json: layer_types: found only {types[0]}; expected linear_attention and full_attention"
        )
    return types


def _head_dims(config: Config) -> Table:
    """Return the widths of heads, with the defaults of the class."""
    heads = config["linear_num_key_heads"] or config["num_attention_heads"]
    key_dim = config["linear_key_head_dim"] or int(0.75 * config["hidden_size"] / heads)
    value_dim = config["linear_value_head_dim"] or 2 * key_dim
    return {"recurrence": {"head_dim": key_dim, "value_head_dim": value_dim}}


def _turns(config: Config) -> bool:
    """True unless theta is null, as in OLMo Hybrid after its extension to long texts."""
    parameters = config["rope_parameters"] or {}
    return parameters.get("rope_theta", config["rope_theta"]) is not None


def _norms(first: str, second: str) -> dict[str, Mapped]:
    """Return the names of norms, which are before branches in recurrent layers and after them in others."""
    after = When("residual.kind", "output", "residual.norms.{mixer}")
    return {
        first: When("residual.kind", "pre", "residual.norms.{mixer}"),
        second: (When("residual.kind", "pre", "residual.norms.feedforward"), after),
        "post_feedforward_layernorm": When("residual.kind", "output", "residual.norms.feedforward"),
    }


CONVS = ("recurrence.query_conv", "recurrence.key_conv", "recurrence.value_conv")

OLMO_HYBRID = OLMO2.derive(
    "olmo_hybrid",
    "OlmoHybridForCausalLM",
    *qk_norm("projection", "float32"),
    common.GATED,
    Either(
        _turns,
        lambda get: get("position.kind") == "rope",
        (Rope(fraction=""),),
        (
            Set({"position.kind": "none"}),
            Write({"rope_parameters": {"rope_theta": None, "rope_type": "default"}}),
        ),
        key="rope_parameters",
    ),
    groups=(
        Layers(
            CustomPattern(_types, Listed().write),
            {
                "full_attention": Role({"recurrence.kind": "none", "residual.kind": "output"}),
                "linear_attention": common.gated_delta(
                    Computed(_head_dims),
                    Set({"recurrence.out_norm.eps": 1e-5, "residual.kind": "pre"}),
                    converted(
                        "linear_allow_neg_eigval",
                        "recurrence.beta_max",
                        lambda n: 1 + n,
                        lambda beta: beta == 2,
                    ),
                    *common.fields(
                        "recurrence.decay",
                        linear_a_log_min="least_rate",
                        linear_a_log_max="most_rate",
                        linear_dt_min="least_step",
                        linear_dt_max="most_step",
                    ),
                ),
            },
        ),
    ),
    layer_keys={
        **_norms("input_layernorm", "post_attention_layernorm"),
        **common.attention_names("linear_attn", "recurrence", common.O_PROJ),
        **common.recurrence_names(
            "linear_attn",
            a_proj="decay.step",
            b_proj="write",
            g_proj="gate",
            q_conv1d="query_conv",
            k_conv1d="key_conv",
            v_conv1d="value_conv",
            A_log="decay.log_rate",
            dt_bias="decay.step_bias",
        ),
        "linear_attn.o_norm": common.GATED_NORM,
    },
    # transformers 5 renames norms in files, and cuts convolutions wherever their widths are.
    other_layer_keys={
        **_norms("attention_layer_norm", "feedforward_layer_norm"),
        **{f"linear_attn.{n}_conv1d": Fused(CONVS, Chunk(i)) for i, n in enumerate("qkv")},
    },
)
