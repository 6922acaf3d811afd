"""Pegasus-X: pre-norm, attention without biases, and a block-local encoder with global tokens."""

from typing import Any

from archwright.hf.families import bart
from archwright.hf.families.common import QKV_BIASES
from archwright.hf.families.fairseq import LAYER_KEYS
from archwright.hf.family import Family
from archwright.hf.lenses import MISSING, Computed, Config, Field, Get, Set, Table, nested
from archwright.hf.two_stacks import in_both
from archwright.spec.errors import UserError
from archwright.spec.masks import BlockLocal

SIZE, STAGGERED = "block_size", "stagger_local_blocks"


def _read_blocks(config: Config) -> Table:
    """Read the encoder's blocks; staggered layers shift them by half a block."""
    size = config[SIZE]
    blocks = nested("attention.mask", {"kind": "block_local", SIZE: size})
    if not config[STAGGERED]:
        return {"encoder": blocks}
    if size % 2:
        raise UserError(
            f"config.json: {SIZE}: found {size} with {STAGGERED} = true; expected an even number"
        )
    moved = nested("attention.mask.shift", size // 2)
    layers = {"cycle": ["default", "staggered"]}
    return {"encoder": {**blocks, "layer_kinds": {"staggered": moved}, "layers": layers}}


def _write_blocks(get: Get) -> dict[str, Any]:
    kinds = get("encoder.layers_by_kind")
    names = () if kinds is MISSING else get("encoder.layers").names(get("encoder.num_layers"))
    masks = [getattr(kinds[name].attention, "mask", None) for name in names]
    blocks = [mask for mask in masks if isinstance(mask, BlockLocal)]
    if not blocks:
        return {}
    return {SIZE: blocks[0].block_size, STAGGERED: any(mask.shift for mask in blocks)}


PEGASUS_X = Family(
    "pegasus_x",
    "PegasusXForConditionalGeneration",
    lenses=(
        *bart.KIN,
        *bart.ONE_VOCABULARY,
        *bart.PRE_NORM,
        *in_both(
            Set({"position.kind": "sinusoidal", "position.layout": "half"}),
            Set({"position.spacing": "fairseq"}),
            Set(dict.fromkeys((*QKV_BIASES, "attention.bias.out"), False)),
        ),
        Set(dict.fromkeys(bart.CROSS_BIASES, False)),
        Set({"encoder.residual.global_norm": True}),
        Computed(_read_blocks, _write_blocks, STAGGERED),
        Field("num_global_tokens", ("encoder.global_tokens", "encoder.attention.mask.num_global")),
    ),
    **{
        **bart.LAYERS,
        "encoder_layer_keys": {**LAYER_KEYS, "global_self_attn_layer_norm": "residual.global_norm"},
    },
    model_keys={
        **bart.SHARED,
        **bart.FINAL_NORMS,
        "model.encoder.embed_global": "encoder.global_tokens",
    },
    ignored=bart.TABLES_OF_SINES,
    endings=bart.REPEATED,
)
