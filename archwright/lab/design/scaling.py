"""Size, learning rate and amount of text of an experiment with small models."""

import math
from collections.abc import Collection

from archwright.spec.attention import MaskedAttention
from archwright.spec.model_spec import LayerSpec, ModelSpec
from archwright.spec.run_spec import RunSpec
from archwright.spec.scale_down import scaled_down

DIMS = (
    16,
    32,
    48,
    64,
    80,
    96,
    112,
    128,
    160,
    192,
    256,
    320,
    384,
    512,
    640,
    768,
    1024,
    1280,
    1536,
    2048,
)

HEAD_DIMS = {192: 16, 512: 32}
"""Widths of heads, by the width of models that have wider ones: 64."""


def depth(dim: int) -> int:
    """Return the usual number of layers of a model of this width.

    Width, depth and heads grow together: 48x2 with 3 heads, 64x3 with 4, 80x4, 96x5, 112x6. Wider models get deeper
    with the square root of the width: 256x9, 768x16, 2048x26.
    """
    return max(2, dim // 16 - 1) if dim <= 112 else round(6 * math.sqrt(dim / 112))


def _size(dim: int, num_layers: int) -> int:
    return 12 * num_layers * dim**2


SIZES = tuple(float(f"{_size(dim, depth(dim)):.2g}") for dim in DIMS if 48 <= dim <= 1536)
"""Sizes that a budget chooses from: 0.055M to 0.62B."""

SMALLEST = _size(DIMS[0], depth(DIMS[0]))
"""Parameters outside embedding and head of the smallest shape."""

EXPERTS = 8
"""Most experts that a token chooses from, as few of more would be trained by a short run."""

USUAL_SHARE = 1 / 4
"""How much of a text a mask shows where nothing says how large it is and its default hides nothing."""

RECIPE = ("schedule.kind=linear", "evaluate.max_tokens=8192")
"""How small models are trained well: the learning rate falls to nothing."""


def shape(size: float) -> tuple[int, int]:
    """Return width and number of layers of about `size` = 12 num_layers dim² parameters."""

    def fit(dim: int) -> tuple[float, int]:
        num_layers = max(2, round(size / _size(dim, 1)))
        off = abs(math.log(_size(dim, num_layers) / size))
        return off + 0.3 * abs(math.log(num_layers / depth(dim))), num_layers

    dim = min(DIMS, key=fit)
    return dim, fit(dim)[1]


def scaled(run: RunSpec, size: float) -> RunSpec:
    """Return a run whose model has about `size` parameters outside embedding and head.

    Below 1M parameters the vocabulary has 1,024 tokens, so that little of the model is embedding, then
    4,096. Heads have 16 dimensions, 32 from a width of 192 and 64 from 512. Texts are 128 tokens long below 1M
    parameters, 256 below 10M, then 512. A step reads 16 of them, 8 up to 0.4M parameters and 4 below 0.2M: so small a
    model learns more of as many tokens in more steps. The learning rate starts at 0.01 (64 / dim)^1/2.
    """
    dim, num_layers = shape(size)
    context = 128 if size < 1e6 else 256 if size < 1e7 else 512
    head_dim = next((width for wider, width in HEAD_DIMS.items() if dim < wider), 64)
    small = scaled_down(run.model, dim, head_dim, num_layers, context, EXPERTS)
    lr = {run.optimizer.learning_rates[0]: float(f"{0.01 * (64 / dim) ** 0.5:.2g}")}
    optimizer = run.optimizer.model_copy(update=lr)
    batch_size = 4 if size < 2e5 else 8 if size <= 4e5 else 16
    changes = {"model": small, "optimizer": optimizer, "batch_size": batch_size}
    small_run = run.model_copy(update=changes)
    return small_run.override(f"data.tokenizer.vocab_size={1024 if size < 1e6 else 4096}")


def with_step_tokens(run: RunSpec, tokens: int) -> RunSpec:
    """Return a run of about so many tokens a step, whatever the length of its texts."""
    at_once = run.grad_accum_steps * run.model.context_length
    rows = run.grad_accum_steps * max(1, round(tokens / at_once))
    return run.model_copy(update={"batch_size": rows})


def with_fitting_masks(run: RunSpec, given: Collection[str], context_length: int) -> RunSpec:
    """Return a run whose masks fit its texts where `given` paths name their kind and not their size.

    The default size keeps its share of `context_length`; where that hides nothing, a mask shows a quarter.
    """
    model = run.model
    update = {}
    for name, layer in model.layers_by_kind.items():
        at = "model." if name == "default" else f"model.layer_kinds.{name}."
        if mask := _fitting_mask(layer, model, f"{at}attention.mask.", given, context_length):
            update[name] = mask
    if not update:
        return run
    values = model.model_dump()
    for name, mask in update.items():
        table = values if name == "default" else values["layer_kinds"][name]
        table["attention"]["mask"] = mask
    return run.model_copy(update={"model": ModelSpec.model_validate(values)})


def _fitting_mask(
    layer: LayerSpec, model: ModelSpec, at: str, given: Collection[str], context_length: int
) -> dict[str, object]:
    """Return the values of a layer's mask where it is of default size and too large, else nothing."""
    if f"{at}kind" not in given or not isinstance(layer.attention, MaskedAttention):
        return {}
    mask, share = layer.attention.mask, model.context_length / context_length
    if any(f"{at}{size}" in given for size in {*dict(mask.in_tokens), *mask.extent}):
        return {}
    # Loads torch, for which a misspelt name need not wait.
    from archwright.parts.masks import is_full

    num_heads = layer.attention.heads(model.dim)["num_heads"]
    if mask.reach and is_full(mask, num_heads, context_length):
        share = USUAL_SHARE * model.context_length / mask.reach
    return mask.model_dump() | mask.shortened(share) if share < 1 else {}
