"""LongT5: T5 with local or transient-global attention in the encoder."""

from typing import Any

from archwright.hf.families.t5 import DROPOUTS, HEADS, SELF, T5, layer_names, read_head
from archwright.hf.lenses import Computed, Config, Field, Get, Lens, Set, Switch, Table
from archwright.hf.weight_map import Mapped, When

LOCAL, SUMS = "LocalSelfAttention", "TransientGlobalSelfAttention"


def _read_scale(config: Config) -> Table:
    """Read LongT5's head; `tie_word_embeddings` only determines the logit scale."""
    # Tensors determine tying: transformers unties a head only if a file has both tables.
    return {"head": read_head(config)["head"] | {"tied": True}}


def _write_scale(get: Get) -> dict[str, Any]:
    return {"tie_word_embeddings": get("head.logit_scale") != 1}


def _kind(encoder_attention: str) -> Set:
    kind = {"encoder.attention.kind": encoder_attention}
    return Set({**kind, "encoder.attention.mask.kind": "symmetric_window"})


_SUMS: tuple[Lens, ...] = (
    _kind("transient_global"),
    Set({"encoder.attention.norm.kind": "rms", "encoder.attention.norm.weight": "plain"}),
    Set({"encoder.attention.norm.scale_in": "input_dtype"}),
    Field("layer_norm_epsilon", "encoder.attention.norm.eps"),
    Field("global_block_size", "encoder.attention.block_size"),
)


def _long_encoder(ours: str, theirs: str) -> dict[str, Mapped]:
    """Return the tensor names of the encoder's attention if its kind is `ours`."""
    norm = {f"layer.0.{theirs}.global_input_layer_norm": "attention.norm"}
    names = (layer_names("layer.1", theirs) | norm).items()
    return {k: When("attention.kind", ours, str(held)) for k, held in names if theirs in k}


def _tables(ours: str, **held: str) -> dict[str, Mapped]:
    """Return the names of the encoder's bias tables, in layer 0, if its attention kind is `ours`."""
    return {
        f"encoder.block.0.layer.0.{name}": When("encoder.attention.kind", ours, f"encoder.{table}")
        for name, table in held.items()
    }


_RELATIVE = "relatives.relative_0.table"
LONGT5 = T5.derive(
    "longt5",
    "LongT5ForConditionalGeneration",
    Switch("encoder_attention_type", {"local": _kind("softmax"), "transient-global": _SUMS}),
    Field("local_radius", "encoder.attention.mask.radius"),
    *HEADS,
    *DROPOUTS,
    Computed(_read_scale, _write_scale, "tie_word_embeddings"),
    ties_unsaid=True,
    encoder_layer_keys={
        **{name: held for name, held in layer_names("layer.1").items() if SELF not in name},
        **_long_encoder("softmax", LOCAL),
        **_long_encoder("transient_global", SUMS),
    },
    model_keys={
        **_tables("softmax", **{f"{LOCAL}.relative_attention_bias": _RELATIVE}),
        **_tables(
            "transient_global",
            **{
                f"{SUMS}.relative_attention_bias": _RELATIVE,
                f"{SUMS}.global_relative_attention_bias": "relatives.sums_1.table",
            },
        ),
    },
)
