"""Mamba-2, and its hybrids with attention: Bamba, Nemotron-H and Falcon-H1."""

import math
from collections.abc import Mapping
from typing import Any

from archwright.hf.families.common import (
    HIDDEN,
    MLP_BIAS,
    ROUTER,
    SIGMOID,
    TIED,
    attention_names,
    embedding_scale,
    experts,
    gated,
)
from archwright.hf.families.llama import LLAMA
from archwright.hf.family import Family
from archwright.hf.layer_types import CustomPattern, Layers, Listed, Role
from archwright.hf.layouts import Rows, Same, View
from archwright.hf.lenses import (
    MISSING,
    Activation,
    Computed,
    Config,
    Field,
    Get,
    Lens,
    Refuse,
    Set,
    Switch,
    Table,
    nested,
)
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused, Mapped
from archwright.spec.errors import UserError

WITHOUT_ATTENTION = {"attention.kind": "none", "position.kind": "none"}
ONLY_RECURRENT = {**WITHOUT_ATTENTION, "recurrence.kind": "linear"}
SWIGLU = Switch("hidden_act", {"silu": Set({"feedforward.kind": "swiglu"})})
"""Lens of the activation of mixers and feed-forwards; mixers accept only silu."""


MAPS = ("gate", "value", "key", "query", "decay")
"""Projections in the order of checkpoints: z, x, B, C and dt."""


def ssd_names(prefix: str) -> dict[str, Mapped]:
    """Return the tensor names of a Mamba-2 mixer: values are x, keys B, queries C and steps dt."""
    maps = [f"recurrence.{name}" for name in MAPS]
    return {
        f"{prefix}.in_proj": Fused((*maps[:4], "recurrence.decay.step"), Rows()),
        f"{prefix}.conv1d": Fused(tuple(f"{name}_conv" for name in maps[1:4]), Rows()),
        f"{prefix}.A_log": "recurrence.decay.log_rate",
        f"{prefix}.dt_bias": "recurrence.decay.step_bias",
        f"{prefix}.D": "recurrence.skip",
        # [groups, width of a group] -> [inner width]
        f"{prefix}.norm": Fused(("recurrence.norm",), View(lambda weight: weight.flatten())),
        f"{prefix}.out_proj": "recurrence.out",
    }


def ssd(
    heads: str = "mamba_n_heads",
    head_dim: str = "mamba_d_head",
    state: str = "mamba_d_state",
    groups: str = "mamba_n_groups",
    conv: str = "mamba_d_conv",
    bias: str = "mamba_proj_bias",
    conv_bias: str = "mamba_conv_bias",
    *,
    eps: str = "rms_norm_eps",
    expand: str = "mamba_expand",
    inner: str = "",
) -> tuple[Lens, ...]:
    """Return the lenses of a Mamba-2 mixer. The arguments are its config keys.

    Args:
        expand: Key of the inner width over the model's width; empty if nothing depends on it.
        inner: Key of the inner width, which overrides `expand`; empty if there is none.
    """

    def read_width(config: Config) -> Table:
        number, width = config[heads], config[head_dim]
        total = (inner and config[inner]) or (expand and config[expand] * config["hidden_size"])
        width = total // number if width == "auto" else width
        if total and number * width != total:
            raise UserError(
                f"config.json: {head_dim}: found {width} in {number} heads; expected {total} in all heads, from "
                f"{inner or expand}"
            )
        return nested("recurrence.value_head_dim", width)

    def write_width(get: Get) -> dict[str, Any]:
        width = get("recurrence.value_head_dim")
        total = get("recurrence.num_heads") * width
        both = {inner: total} if inner else {expand: total // get("dim")} if expand else {}
        return {head_dim: width, **both}

    return (
        Set({f"recurrence.{name}": value for name, value in SSD.items()}),
        Field(heads, "recurrence.num_heads"),
        Computed(read_width, write_width, head_dim),
        Field(state, "recurrence.head_dim"),
        Field(groups, "recurrence.num_key_heads"),
        Field(conv, "recurrence.conv_width"),
        Field(bias, "recurrence.bias"),
        Field(conv_bias, "recurrence.conv_bias"),
        Computed(lambda config: nested("recurrence.out_norm.eps", config[eps])),
        Computed(_read_limit, _write_limit, "time_step_limit"),
    )


SSD = {
    **{"kind": "linear", "write": "step", "decay.kind": "per_head", "skip": True},
    **{"qk_norm": "none", "scale": "none", "gate_position": "before"},
    **{"out_norm.kind": "rms", "out_norm.scale_in": "input_dtype", "out_norm_over": "group"},
}
"""Options of a linear recurrence that is a Mamba-2 mixer."""


def _read_limit(config: Config) -> Table:
    least, most = config.get("time_step_limit") or (0.0, math.inf)
    # Since version 5, `transformers` writes infinity as {"__float__": "Infinity"}.
    bounded = not isinstance(most, Mapping) and most != math.inf
    clamps = {"clamp_min": float(least), "clamp_max": float(most) if bounded else "none"}
    return nested("recurrence.decay", clamps)


def _write_limit(get: Get) -> dict[str, Any]:
    least, most = (get(f"recurrence.decay.clamp_{name}") for name in ("min", "max"))
    limit = [least, {"__float__": "Infinity"} if most == "none" else most]
    return {} if limit == [0, {"__float__": "Infinity"}] else {"time_step_limit": limit}


BACKBONE = {"backbone.embeddings": "embedding", "backbone.norm_f": "norm"}

MAMBA2 = Family(
    "mamba2",
    "Mamba2ForCausalLM",
    lenses=(
        Field("vocab_size", "vocab_size"),
        Field("hidden_size", "dim"),
        Field("num_hidden_layers", "num_layers"),
        Field("max_position_embeddings", "context_length"),
        Set({**WITHOUT_ATTENTION, "feedforward.kind": "none"}),
        Set({"residual.kind": "pre", "norm.kind": "rms", "norm.scale_in": "input_dtype"}),
        Field("layer_norm_epsilon", "norm.eps"),
        Refuse("hidden_act", ("silu",)),
        *ssd(
            *("num_heads", "head_dim", "state_size", "n_groups", "conv_kernel", "use_bias"),
            "use_conv_bias",
            eps="layer_norm_epsilon",
            expand="expand",
        ),
        TIED,
    ),
    layers="backbone.layers.{i}.",
    layer_keys={"norm": "residual.norms.recurrence", **ssd_names("mixer")},
    model_keys={**BACKBONE, "lm_head": "head"},
    prefix="backbone.",
    undeclared={"max_position_embeddings": 2048},
)


def layer_types(recurrent: Role, attention: Role) -> dict[str, Role]:
    """Return roles by layer type, in the names of published files and of `transformers` 5."""
    older = {"mamba": recurrent, "attention": attention}
    return older | {"linear_attention": recurrent, "full_attention": attention}


HYBRID = layer_types(Role(ONLY_RECURRENT, ssd()), Role({"recurrence.kind": "none"}))
"""Layer types of Bamba and Granite 4."""
BLOCK = {
    **ssd_names("mamba"),
    **gated("feed_forward", "feedforward"),
    "pre_ff_layernorm": "residual.norms.feedforward",
}


def _read_indices(config: Config, n: int) -> list[str]:
    places = config["attn_layer_indices"] or ()
    return ["attention" if i in places else "mamba" for i in range(n)]


def _write_indices(roles: list[str]) -> dict[str, Any]:
    return {"attn_layer_indices": [i for i, role in enumerate(roles) if role == "attention"]}


BAMBA = LLAMA.derive(
    "bamba",
    "BambaForCausalLM",
    SWIGLU,
    Rope(),
    groups=(Layers(CustomPattern(_read_indices, _write_indices), HYBRID),),
    layer_keys=BLOCK,
    model_keys={"model.final_layernorm": "norm"},
    undeclared={"partial_rotary_factor": 0.5},
)

LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
ONE_BRANCH = {"attention.kind": "none", "recurrence.kind": "none"}


def _read_pattern(config: Config, num_layers: int = 0) -> list[str]:
    """Return the layer types of a pattern such as "M-M*"."""
    if pattern := config.get("hybrid_override_pattern"):
        return [LETTERS.get(letter, letter) for letter in pattern]
    return ["linear_attention", "moe", "full_attention", "mlp"]


TYPES = Listed("layers_block_type", _read_pattern)

MIXER = (
    *("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"),
    *("use_bias", "use_conv_bias"),
)

NEMOTRON_H = LLAMA.derive(
    "nemotron_h",
    "NemotronHForCausalLM",
    Computed(
        lambda config: {"num_layers": len(TYPES.read(config, 0))},
        lambda get: {"num_hidden_layers": get("num_layers")},
        "num_hidden_layers",
    ),
    Set({"position.kind": "none", "norm.scale_in": "float32"}),
    Field("layer_norm_epsilon", "norm.eps"),
    Refuse("attention_bias", (False,)),
    groups=(
        Layers(
            TYPES,
            {
                "moe": Role(
                    {**ONE_BRANCH, "feedforward.kind": "experts"},
                    (
                        *experts(
                            "n_routed_experts",
                            "moe_intermediate_size",
                            act=Activation("mlp_hidden_act", False, "feedforward.expert"),
                            shared="added",
                            **SIGMOID,
                        ),
                        Field(
                            "moe_shared_expert_intermediate_size", "feedforward.shared_hidden_dim"
                        ),
                        Field("moe_latent_size", "feedforward.latent_dim", or_none=True),
                        *ROUTER,
                        Refuse("mlp_bias", (False,)),
                    ),
                ),
                "mlp": Role(
                    ONE_BRANCH, (Activation("mlp_hidden_act", gated=False), HIDDEN, MLP_BIAS)
                ),
                **layer_types(
                    Role(
                        {**ONLY_RECURRENT, "feedforward.kind": "none"},
                        (
                            *ssd(*MIXER, eps="layer_norm_epsilon", expand=""),
                            Refuse("mamba_hidden_act", ("silu",)),
                            # The class bounds steps by this in place of `time_step_limit`.
                            Field("time_step_min", "recurrence.decay.clamp_min"),
                            Set({"recurrence.decay.clamp_max": "none"}),
                        ),
                    ),
                    Role({"recurrence.kind": "none", "feedforward.kind": "none"}),
                ),
            },
        ),
    ),
    layer_keys={
        "norm": Fused(("residual.norms.{mixer}", "residual.norms.feedforward"), Same()),
        **attention_names("mixer", maps=("q_proj", "k_proj", "v_proj", "o_proj")),
        **ssd_names("mixer"),
        "mixer.gate": "feedforward.router",
        "mixer.gate.e_score_correction_bias": "feedforward.selection_bias",
        "mixer.fc1_latent_proj": "feedforward.latent_down",
        "mixer.fc2_latent_proj": "feedforward.latent_up",
        "mixer.up_proj": "feedforward.up",
        "mixer.down_proj": "feedforward.down",
        "mixer.experts.{e}.up_proj": "feedforward.experts.up",
        "mixer.experts.{e}.down_proj": "feedforward.experts.down",
        "mixer.shared_experts.up_proj": "feedforward.shared.up",
        "mixer.shared_experts.down_proj": "feedforward.shared.down",
    },
    model_keys=BACKBONE,
    prefix="backbone.",
    ignored=(r"mtp\..*",),
)


def _read_multipliers(config: Config) -> Table:
    """Return the multipliers of Falcon-H1.

    The scale of scores includes the multipliers of keys and of attention's input, and the factors of the mixer's
    projections include the multiplier of its input.
    """
    inside, width = config["attention_in_multiplier"], config["head_dim"]
    if inside != 1 and config["attention_bias"]:
        raise UserError(
            f"config.json: attention_bias: found True with attention_in_multiplier = {inside}; expected False"
        )
    width = width or config["hidden_size"] // config["num_attention_heads"]
    gate, down = config["mlp_multipliers"] or (1.0, 1.0)
    attention = inside * config["attention_out_multiplier"]
    recurrence = config["ssm_out_multiplier"]
    values = {
        "feedforward.gate_multiplier": gate,
        "residual.multiplier.feedforward": down,
        "residual.multiplier.attention": attention,
        "residual.multiplier.recurrence": "attention" if recurrence == attention else recurrence,
    }
    for name, value in zip(MAPS, config["ssm_multipliers"] or (1.0,) * 5, strict=True):
        values[f"recurrence.multipliers.{name}"] = config["ssm_in_multiplier"] * value
    if (factor := config["key_multiplier"] * inside**2) != 1:
        # Fewer digits than are written, so that the number stays the same.
        number = float(f"{factor * width**-0.5:.12g}")
        values |= {"attention.scale.kind": "fixed", "attention.scale.value": number}
    return Set(values).read(config)


def _write_multipliers(get: Get) -> dict[str, Any]:
    scale, gate = get("attention.scale.value"), get("feedforward.gate_multiplier")
    attention, recurrence, down = (
        get(f"residual.multiplier.{name}") for name in ("attention", "recurrence", "feedforward")
    )
    factor = 1.0 if scale is MISSING else float(f"{scale * get('attention.head_dim') ** 0.5:.15g}")
    return {
        "attention_in_multiplier": 1.0,
        "key_multiplier": factor,
        "attention_out_multiplier": attention,
        "ssm_in_multiplier": 1.0,
        "ssm_multipliers": [get(f"recurrence.multipliers.{name}") for name in MAPS],
        "ssm_out_multiplier": attention if recurrence == "attention" else recurrence,
        "mlp_multipliers": [gate, down],
    }


def either(key: str, path: str, yes: str, no: str) -> Switch:
    """Return the lens of a boolean key for one of two words."""
    return Switch(key, {True: Set({path: yes}), False: Set({path: no})})


FALCON_H1 = LLAMA.derive(
    "falcon_h1",
    "FalconH1ForCausalLM",
    SWIGLU,
    embedding_scale("embedding_multiplier"),
    Field("lm_head_multiplier", "head.logit_scale"),
    *ssd(inner="mamba_d_ssm"),
    either("mamba_rms_norm", "recurrence.out_norm.kind", "rms", "none"),
    either("mamba_norm_before_gate", "recurrence.gate_position", "after", "before"),
    # Multipliers and biases do not commute, and no published model has both.
    Refuse("mamba_proj_bias", (False,)),
    Refuse("projectors_bias", (False,)),
    Computed(_read_multipliers, _write_multipliers),
    layer_keys=BLOCK,
    model_keys={"model.final_layernorm": "norm"},
)
