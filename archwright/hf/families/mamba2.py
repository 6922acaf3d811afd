"""Mamba-2, and its hybrids with attention: Bamba, Nemotron-H and Falcon-H1."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from archwright.hf.families import common
from archwright.hf.families.llama import LLAMA
from archwright.hf.families.mamba import BACKBONE, backbone
from archwright.hf.layer_types import Layers, Listed, Role
from archwright.hf.layouts import Same
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

SWIGLU = Switch("hidden_act", {"silu": Set({"feedforward.kind": "swiglu"})})
"""Lens of the activation of mixers and feed-forwards; mixers accept only silu."""
MAPS = ("gate", "value", "key", "query", "decay")
"""Projections in the order of checkpoints: z, x, B, C and dt."""


def ssd_names(prefix: str) -> dict[str, Mapped]:
    """Return the tensor names of a Mamba-2 mixer: values are x, keys B, queries C and steps dt."""
    names = common.recurrence_names(
        prefix,
        in_proj=(*MAPS[:4], "decay.step"),
        conv1d=("value_conv", "key_conv", "query_conv"),
        A_log="decay.log_rate",
        dt_bias="decay.step_bias",
        D="skip",
        out_proj="out",
    )
    return {**names, f"{prefix}.norm": common.FLAT_NORM}


OPTIONS = ("num_heads", "head_dim", "num_key_heads", "conv_width", "conv_bias", "bias")
KEYS = (
    *("mamba_n_heads", "mamba_d_state", "mamba_n_groups", "mamba_d_conv"),
    *("mamba_conv_bias", "mamba_proj_bias"),
)
SHORT_KEYS = ("state_size", "n_groups", "conv_kernel", "use_conv_bias", "use_bias")
"""Options of a mixer, and their config keys."""


def ssd(
    keys: Sequence[str] = KEYS,
    head_dim: str = "mamba_d_head",
    *,
    eps: str = "rms_norm_eps",
    expand: str = "mamba_expand",
    inner: str = "",
) -> tuple[Lens, ...]:
    """Return the lenses of a Mamba-2 mixer. The arguments are its config keys.

    Args:
        keys: Keys of `OPTIONS`.
        expand: Key of the inner width over the model's width; empty if nothing depends on it.
        inner: Key of the inner width, which overrides `expand`; empty if there is none.
    """

    def read_width(config: Config) -> Table:
        number, width = config[keys[0]], config[head_dim]
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
        *common.fields("recurrence", **dict(zip(keys, OPTIONS, strict=True))),
        Computed(read_width, write_width, head_dim),
        common.out_norm_eps(eps),
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


MAMBA2 = backbone(
    "mamba2",
    "Mamba2ForCausalLM",
    *ssd(("num_heads", *SHORT_KEYS), "head_dim", eps="layer_norm_epsilon", expand="expand"),
    names=ssd_names("mixer"),
)


def layer_types(recurrent: Role, attention: Role) -> dict[str, Role]:
    """Return roles by layer type, in the names of published files and of `transformers` 5."""
    older = {"mamba": recurrent, "attention": attention}
    return older | {"linear_attention": recurrent, "full_attention": attention}


HYBRID = layer_types(Role(common.recurrent("linear"), ssd()), common.ATTENDING)
"""Layer types of Bamba and Granite 4."""
BLOCK = {
    **ssd_names("mamba"),
    **common.gated("feed_forward", "feedforward"),
    "pre_ff_layernorm": "residual.norms.feedforward",
}


BAMBA = LLAMA.derive(
    "bamba",
    "BambaForCausalLM",
    SWIGLU,
    Rope(),
    groups=(Layers(common.at("attn_layer_indices", "attention", "mamba"), HYBRID),),
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
                        *common.experts(
                            "n_routed_experts",
                            "moe_intermediate_size",
                            act=Activation("mlp_hidden_act", False, "feedforward.expert"),
                            shared="added",
                            **common.SIGMOID,
                        ),
                        Field(
                            "moe_shared_expert_intermediate_size", "feedforward.shared_hidden_dim"
                        ),
                        Field("moe_latent_size", "feedforward.latent_dim", or_none=True),
                        *common.ROUTER,
                        Refuse("mlp_bias", (False,)),
                    ),
                ),
                "mlp": Role(
                    ONE_BRANCH,
                    (Activation("mlp_hidden_act", gated=False), common.HIDDEN, common.MLP_BIAS),
                ),
                **layer_types(
                    Role(
                        {**common.recurrent("linear"), "feedforward.kind": "none"},
                        (
                            *ssd(
                                ("mamba_num_heads", "ssm_state_size", *SHORT_KEYS[1:]),
                                "mamba_head_dim",
                                eps="layer_norm_epsilon",
                                expand="",
                            ),
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
        **common.attention_names("mixer", maps=common.O_PROJ),
        **ssd_names("mixer"),
        "mixer.gate": "feedforward.router",
        "mixer.gate.e_score_correction_bias": "feedforward.selection_bias",
        "mixer.fc1_latent_proj": "feedforward.latent_down",
        "mixer.fc2_latent_proj": "feedforward.latent_up",
        **common.ungated("mixer", "feedforward"),
        **common.ungated("mixer.experts.{e}", "feedforward.experts"),
        **common.ungated("mixer.shared_experts", "feedforward.shared"),
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
    inside, recurrence = config["attention_in_multiplier"], config["ssm_out_multiplier"]
    if inside != 1 and config["attention_bias"]:
        raise UserError(
            f"config.json: attention_bias: found True with attention_in_multiplier = {inside}; expected False"
        )
    attention = inside * config["attention_out_multiplier"]
    gate, down = config["mlp_multipliers"] or (1.0, 1.0)
    maps = [config["ssm_in_multiplier"] * value for value in config["ssm_multipliers"] or [1.0] * 5]
    branches = {
        "feedforward": down,
        "attention": attention,
        "recurrence": "attention" if recurrence == attention else recurrence,
    }
    table: Table = {
        "feedforward": {"gate_multiplier": gate},
        "residual": {"multiplier": branches},
        "recurrence": {"multipliers": dict(zip(MAPS, maps, strict=True))},
    }
    if (factor := config["key_multiplier"] * inside**2) != 1:
        width = config["head_dim"] or config["hidden_size"] // config["num_attention_heads"]
        # Fewer digits than are written, so that the number stays the same.
        scale = {"kind": "fixed", "value": float(f"{factor * width**-0.5:.12g}")}
        table["attention"] = {"scale": scale}
    return table


def _write_multipliers(get: Get) -> dict[str, Any]:
    scale, branches = get("attention.scale.value"), get("residual.multiplier")
    factor = 1.0 if scale is MISSING else float(f"{scale * get('attention.head_dim') ** 0.5:.15g}")
    return {
        **{"attention_in_multiplier": 1.0, "ssm_in_multiplier": 1.0, "key_multiplier": factor},
        "attention_out_multiplier": branches["attention"],
        "ssm_out_multiplier": branches["recurrence"],
        "ssm_multipliers": [get(f"recurrence.multipliers.{name}") for name in MAPS],
        "mlp_multipliers": [get("feedforward.gate_multiplier"), branches["feedforward"]],
    }


FALCON_H1 = LLAMA.derive(
    "falcon_h1",
    "FalconH1ForCausalLM",
    SWIGLU,
    common.embedding_scale("embedding_multiplier"),
    Field("lm_head_multiplier", "head.logit_scale"),
    *ssd(inner="mamba_d_ssm"),
    common.flag(
        "mamba_rms_norm", {"recurrence.out_norm.kind": "rms"}, {"recurrence.out_norm.kind": "none"}
    ),
    common.flag(
        "mamba_norm_before_gate",
        {"recurrence.gate_position": "after"},
        {"recurrence.gate_position": "before"},
    ),
    # Multipliers and biases do not commute, and no published model has both.
    Refuse("mamba_proj_bias", (False,)),
    Refuse("projectors_bias", (False,)),
    Computed(_read_multipliers, _write_multipliers),
    layer_keys=BLOCK,
    model_keys={"model.final_layernorm": "norm"},
)
