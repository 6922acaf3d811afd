"""Selective scans: Mamba, Falcon-Mamba (TII) and Jamba (AI21)."""

from typing import Any

from archwright.hf.families import common
from archwright.hf.families.llama import LLAMA
from archwright.hf.family import Family
from archwright.hf.layer_types import Layers, Role
from archwright.hf.lenses import Computed, Config, Field, Get, Lens, Refuse, Set, Table, nested
from archwright.hf.weight_map import Mapped


def _width(expand: str, inner: str = "") -> Computed:
    """Return the lens of the inner width. If a file has the width itself, as `inner`, `expand` is not read."""

    def read(config: Config) -> Table:
        width = config.get(inner) or config[expand] * config["hidden_size"]
        return nested("recurrence.inner_dim", width)

    def write(get: Get) -> dict[str, Any]:
        width = get("recurrence.inner_dim")
        return {expand: max(1, width // get("dim")), **({inner: width} if inner else {})}

    return Computed(read, write)


def mixer_names(prefix: str) -> dict[str, Mapped]:
    """Return the tensor names of a selective scan."""
    return common.recurrence_names(
        prefix,
        in_proj=("value", "gate"),
        conv1d="value_conv",
        x_proj=("step_down", "write", "read"),
        dt_proj="step_up",
        A_log="log_rates",
        D="skip",
        out_proj="out",
        dt_layernorm="step_norm",
        b_layernorm="write_norm",
        c_layernorm="read_norm",
    )


BACKBONE = {"backbone.embeddings": "embedding", "backbone.norm_f": "norm"}


def backbone(model_type: str, architecture: str, *lenses: Lens, names: dict[str, Mapped]) -> Family:
    """Return a family of recurrent layers alone, with these lenses and tensor names."""
    return Family(
        model_type,
        architecture,
        lenses=(
            *common.SIZES[:4],
            Set({"attention.kind": "none", "position.kind": "none", "feedforward.kind": "none"}),
            Set({"residual.kind": "pre", "norm.kind": "rms", "norm.scale_in": "input_dtype"}),
            Field("layer_norm_epsilon", "norm.eps"),
            Refuse("hidden_act", ("silu", "swish")),
            *lenses,
            common.TIED,
        ),
        layers="backbone.layers.{i}.",
        layer_keys={"norm": "residual.norms.{mixer}", **names},
        model_keys={**BACKBONE, "lm_head": "head"},
        prefix="backbone.",
        endings={"backbone.embedding.weight": "backbone.embeddings.weight"},
        undeclared={"max_position_embeddings": 2048},  # of training: configs have no length
    )


MAMBA = backbone(
    "mamba",
    "MambaForCausalLM",
    Set({"recurrence.kind": "selective", "recurrence.scan_norm.kind": "none"}),
    _width("expand", "intermediate_size"),
    *common.fields(
        "recurrence",
        state_size="state_dim",
        time_step_rank="step_rank",
        conv_kernel="conv_width",
        use_conv_bias="conv_bias",
        use_bias="bias",
    ),
    names=mixer_names("mixer"),
)

FALCON_MAMBA = MAMBA.derive(
    "falcon_mamba",
    "FalconMambaForCausalLM",
    Set({"recurrence.scan_norm.kind": "rms", "recurrence.scan_norm.weight": "none"}),
    Field("mixer_rms_eps", "recurrence.scan_norm.eps"),
    undeclared={"max_position_embeddings": 8192},
)

MAMBA_LAYER = (
    *common.fields(
        "recurrence",
        mamba_d_state="state_dim",
        mamba_dt_rank="step_rank",
        mamba_d_conv="conv_width",
        mamba_conv_bias="conv_bias",
        mamba_proj_bias="bias",
    ),
    _width("mamba_expand"),
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
            common.periodic("attn_layer", "attention", "mamba"),
            {
                "attention": common.ATTENDING,
                "mamba": Role(common.recurrent("selective"), MAMBA_LAYER),
            },
        ),
        common.sparse(
            common.periodic("expert_layer", "sparse", "dense"),
            *common.experts(
                "num_experts", "intermediate_size", routing="softmax", normalize_weights=False
            ),
            common.balance(),
        ),
    ),
    layer_keys={
        "pre_ff_layernorm": "residual.norms.feedforward",
        **common.gated("feed_forward", "feedforward"),
        "feed_forward.router": "feedforward.router",
        **common.listed("feed_forward.experts"),
        **mixer_names("mamba"),
    },
    model_keys={"model.final_layernorm": "norm"},
)
