"""Selective scans: Mamba, Falcon-Mamba (TII) and Jamba (AI21)."""

from typing import Any

from archwright.hf.families.common import (
    SIZES,
    TIED,
    balance,
    dense,
    experts,
    gated,
    listed,
    periodic,
    sparse,
)
from archwright.hf.families.llama import LLAMA
from archwright.hf.family import Family
from archwright.hf.layer_types import Layers, Role
from archwright.hf.layouts import Rows
from archwright.hf.lenses import MISSING, Computed, Config, Field, Get, Refuse, Set, Table, nested
from archwright.hf.weight_map import Fused, Mapped

SELECTIVE = {"attention.kind": "none", "position.kind": "none", "recurrence.kind": "selective"}


def _read_width(config: Config) -> Table:
    width = config.get("intermediate_size") or config["expand"] * config["hidden_size"]
    return nested("recurrence.inner_dim", width)


def _write_width(get: Get) -> dict[str, Any]:
    if (width := get("recurrence.inner_dim")) is MISSING:
        return {}
    # The class computes the width from `expand`, unless a file has the width itself.
    return {"expand": max(1, width // get("dim")), "intermediate_size": width}


def mixer_names(prefix: str) -> dict[str, Mapped]:
    """Return the tensor names of a selective scan."""
    inputs = Fused(("recurrence.value", "recurrence.gate"), Rows())
    steps = Fused(("recurrence.step_down", "recurrence.write", "recurrence.read"), Rows())
    names: dict[str, Mapped] = {
        "in_proj": inputs,
        "conv1d": "recurrence.value_conv",
        "x_proj": steps,
        "dt_proj": "recurrence.step_up",
        "A_log": "recurrence.log_rates",
        "D": "recurrence.skip",
        "out_proj": "recurrence.out",
        "dt_layernorm": "recurrence.step_norm",
        "b_layernorm": "recurrence.write_norm",
        "c_layernorm": "recurrence.read_norm",
    }
    return {f"{prefix}.{name}": ours for name, ours in names.items()}


MAMBA = Family(
    "mamba",
    "MambaForCausalLM",
    lenses=(
        *SIZES[:4],
        Set({**SELECTIVE, "feedforward.kind": "none", "recurrence.scan_norm.kind": "none"}),
        Set({"residual.kind": "pre", "norm.kind": "rms", "norm.scale_in": "input_dtype"}),
        Field("layer_norm_epsilon", "norm.eps"),
        Computed(_read_width, _write_width),
        Field("state_size", "recurrence.state_dim"),
        Field("time_step_rank", "recurrence.step_rank"),
        Field("conv_kernel", "recurrence.conv_width"),
        Field("use_conv_bias", "recurrence.conv_bias"),
        Field("use_bias", "recurrence.bias"),
        Refuse("hidden_act", ("silu", "swish")),
        TIED,
    ),
    layers="backbone.layers.{i}.",
    layer_keys={"norm": "residual.norms.{mixer}", **mixer_names("mixer")},
    model_keys={
        "backbone.embeddings": "embedding",
        "backbone.norm_f": "norm",
        "lm_head": "head",
    },
    prefix="backbone.",
    endings={"backbone.embedding.weight": "backbone.embeddings.weight"},
    undeclared={"max_position_embeddings": 2048},  # of training: configs have no length
)

FALCON_MAMBA = MAMBA.derive(
    "falcon_mamba",
    "FalconMambaForCausalLM",
    Set({"recurrence.scan_norm.kind": "rms", "recurrence.scan_norm.weight": "none"}),
    Field("mixer_rms_eps", "recurrence.scan_norm.eps"),
    undeclared={"max_position_embeddings": 8192},
)

MAMBA_LAYER = (
    Field("mamba_d_state", "recurrence.state_dim"),
    Field("mamba_dt_rank", "recurrence.step_rank"),
    Field("mamba_d_conv", "recurrence.conv_width"),
    Field("mamba_conv_bias", "recurrence.conv_bias"),
    Field("mamba_proj_bias", "recurrence.bias"),
    Computed(
        lambda config: nested(
            "recurrence.inner_dim", config["mamba_expand"] * config["hidden_size"]
        ),
        lambda get: {"mamba_expand": get("recurrence.inner_dim") // get("dim")},
    ),
    Set({"recurrence.scan_norm.kind": "rms", "recurrence.scan_norm.scale_in": "input_dtype"}),
    Field("rms_norm_eps", "recurrence.scan_norm.eps"),
)

JAMBA = LLAMA.derive(
    "jamba",
    "JambaForCausalLM",
    Set({"position.kind": "none"}),
    Field("rms_norm_eps", "norm.eps"),
    groups=(
        Layers(
            periodic("attn_layer", "attention", "mamba"),
            {
                "attention": Role({"recurrence.kind": "none"}),
                "mamba": Role(SELECTIVE, MAMBA_LAYER),
            },
        ),
        sparse(
            periodic("expert_layer", "sparse", "dense"),
            *experts(
                "num_experts", "intermediate_size", routing="softmax", normalize_weights=False
            ),
            balance(),
            other=dense(),
        ),
    ),
    layer_keys={
        "pre_ff_layernorm": "residual.norms.feedforward",
        **gated("feed_forward", "feedforward"),
        "feed_forward.router": "feedforward.router",
        **listed("feed_forward.experts"),
        **mixer_names("mamba"),
    },
    model_keys={"model.final_layernorm": "norm"},
)
