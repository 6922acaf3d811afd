"""Longformer attention in configs: per-layer windows, and global tokens at the start.

A transformers config does not record global tokens; the models receive them as the input `global_attention_mask`.
In published use the first token is global. A spec stores their number, exported as `num_global_tokens`.
transformers preserves this key but does not read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from archwright.classic.spec.longformer import Longformer
from archwright.hf.layer_types import arranged
from archwright.hf.lenses import MISSING, Computed, Config, Field, Get, Lens, Set, Table, nested
from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from archwright.spec.model_spec import ModelSpec

PARTS = ("query", "key", "value")
"""Projections with separate weights for global tokens."""
NUM_GLOBAL = "num_global_tokens"
WINDOW = "attention_window"


def longformer_attention(at: str) -> tuple[Lens, ...]:
    """Return the lenses of Longformer attention at a path."""
    biases = {f"{at}.bias.{part}": True for part in (*PARTS, "out")}
    return (
        Set({f"{at}.kind": "longformer", f"{at}.mask.kind": "longformer", **biases}),
        Field(NUM_GLOBAL, f"{at}.mask.num_global"),
    )


def windows(num_layers: str, stack: str = "") -> Computed:
    """Return the lens of the window width of each layer, which is twice the radius in the spec.

    Args:
        num_layers: Config key of the number of layers.
        stack: Path of the stack in a spec; empty for the decoder.
    """

    def read(config: Config) -> Table:
        value, number = config[WINDOW], config[num_layers]
        sizes = value if isinstance(value, list) else [value]
        wrong = [size for size in sizes if not isinstance(size, int) or size < 2 or size % 2]
        if wrong:
            raise UserError(
                f"config.json: {WINDOW}: found {wrong[0]!r}; expected an even number from 2 on"
            )
        if isinstance(value, list) and len(value) != number:
            raise UserError(
                f"config.json: {WINDOW}: found {len(value)} windows; expected {number}, one for each layer"
            )
        table: Table = {}
        radii = [nested("attention.mask.radius", size // 2) for size in sizes]
        arranged(table, radii, [f"window_{size}" for size in sizes])
        return nested(stack, table) if stack else table

    def write(get: Get) -> dict[str, Any]:
        start = f"{stack}." if stack else ""
        kinds = get(f"{start}layers_by_kind")
        if kinds is MISSING:
            return {}
        names = get(f"{start}layers").names(get(f"{start}num_layers"))
        masks = [getattr(kinds[name].attention, "mask", None) for name in names]
        radii = [mask.radius for mask in masks if isinstance(mask, Longformer)]
        return {WINDOW: [2 * radius for radius in radii]} if len(radii) == len(masks) else {}

    return Computed(read, write, WINDOW)


def global_attention_mask(spec: ModelSpec, tokens: Tensor) -> dict[str, Tensor]:
    """Return the input `global_attention_mask`, [batch, length]: 1 for global tokens."""
    import torch  # not needed to read configs

    stack = spec.encoder_model or spec
    mask = getattr(stack.layer(0).attention, "mask", None)
    assert isinstance(mask, Longformer)
    chosen = torch.zeros_like(tokens)
    chosen[:, : mask.num_global] = 1
    return {"global_attention_mask": chosen}
