"""Longformer's attention in configs: a window for each layer, and tokens at the start that see all and are seen by all.

No config of the library says which tokens are global: its models are told so with every text, by an input called
`global_attention_mask`. Published use makes the first token global. A spec has their number; it is written under a key
of its own, which the library keeps and does not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from archwright.hf.layer_types import arranged
from archwright.hf.lenses import MISSING, Computed, Config, Field, Get, Lens, Set, Table, nested
from archwright.spec.errors import UserError
from archwright.spec.masks import Longformer

if TYPE_CHECKING:
    from torch import Tensor

    from archwright.spec.model_spec import ModelSpec

PARTS = ("query", "key", "value")
"""Maps of which global tokens have some of their own."""
NUM_GLOBAL = "num_global_tokens"
WINDOW = "attention_window"


def longformer_attention(at: str) -> tuple[Lens, ...]:
    """Return the lenses of attention at this path: its kind, its biases, and how many tokens are global."""
    biases = {f"{at}.bias.{part}": True for part in (*PARTS, "out")}
    return (
        Set({f"{at}.kind": "longformer", f"{at}.mask.kind": "longformer", **biases}),
        Field(NUM_GLOBAL, f"{at}.mask.num_global"),
    )


def windows(num_layers: str, stack: str = "") -> Computed:
    """Return the lens of how wide the window of each layer is, half of which lies on either side of a token.

    Args:
        num_layers: the key of how many layers there are.
        stack: the path of a stack that is no decoder.
    """

    def read(config: Config) -> Table:
        found, number = config[WINDOW], config[num_layers]
        sizes = found if isinstance(found, list) else [found]
        wrong = [size for size in sizes if not isinstance(size, int) or size < 2 or size % 2]
        if wrong:
            raise UserError(
                f"config.json: {WINDOW}: found {wrong[0]!r}; expected an even number from 2 on"
            )
        if isinstance(found, list) and len(found) != number:
            raise UserError(
                f"config.json: {WINDOW}: found {len(found)} windows; expected {number}, one for each layer"
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
    """Return what the library's models are told about a text [batch, length]: 1 where a token is global."""
    import torch  # configs are read without it

    stack = spec.encoder_model or spec
    mask = getattr(stack.layer(0).attention, "mask", None)
    assert isinstance(mask, Longformer)
    chosen = torch.zeros_like(tokens)
    chosen[:, : mask.num_global] = 1
    return {"global_attention_mask": chosen}
