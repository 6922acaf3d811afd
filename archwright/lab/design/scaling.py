"""Scaling of runs to small models: widths, depths, learning rates and sequence lengths."""

import math
from collections.abc import Collection

from archwright.spec.attention import MaskedAttention
from archwright.spec.model_spec import LayerSpec, ModelSpec
from archwright.spec.run_spec import RunSpec
from archwright.spec.scale_down import scaled_down

DIMS = (*range(16, 129, 16), 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048)

HEAD_DIMS = {192: 16, 512: 32}
"""Head width of models narrower than the key; wider models have heads of 64."""


def depth(dim: int) -> int:
    """Return the usual number of layers for a width.

    48x2, 64x3, 80x4, 96x5 and 112x6, then proportional to the square root of the width: 256x9, 768x16, 2048x26.
    """
    return max(2, dim // 16 - 1) if dim <= 112 else round(6 * math.sqrt(dim / 112))


def _size(dim: int, num_layers: int) -> int:
    return 12 * num_layers * dim**2


SIZES = tuple(float(f"{_size(dim, depth(dim)):.2g}") for dim in DIMS if 48 <= dim <= 1536)
"""Sizes for a time budget: 0.055M to 0.62B."""

SMALLEST = _size(DIMS[0], depth(DIMS[0]))
"""Non-embedding parameters of the smallest shape."""

EXPERTS = 8
"""Most experts of a layer; a short run would not train more."""

USUAL_SHARE = 1 / 4
"""Visible share of a sequence for masks with a default size that hides nothing."""

RECIPE = ("schedule.kind=linear", "evaluate.max_tokens=8192")
"""Overrides for small models: the learning rate decays to 0."""


def shape(size: float) -> tuple[int, int]:
    """Return width and depth for about `size` = 12 num_layers dim² parameters."""

    def fit(dim: int) -> tuple[float, int]:
        num_layers = max(2, round(size / _size(dim, 1)))
        off = abs(math.log(_size(dim, num_layers) / size))
        return off + 0.3 * abs(math.log(num_layers / depth(dim))), num_layers

    dim = min(DIMS, key=fit)
    return dim, fit(dim)[1]


def scaled(run: RunSpec, size: float) -> RunSpec:
    """Return a run of a model with about `size` non-embedding parameters.

    The vocabulary has 1,024 tokens below 1M parameters, to keep embeddings small, then 4,096. Sequences have 128
    tokens below 1M parameters, 256 below 10M, then 512. A batch has 4 sequences below 0.2M parameters, 8 up to 0.4M,
    then 16, because small models learn more from more steps. The learning rate is 0.01 (64 / dim)^1/2.
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
    """Return a run with the batch size for about `tokens` per step."""
    microbatches = run.grad_accum_steps
    sequences = max(1, round(tokens / (microbatches * run.model.context_length)))
    return run.model_copy(update={"batch_size": microbatches * sequences})


def with_fitting_masks(run: RunSpec, paths: Collection[str], context_length: int) -> RunSpec:
    """Return a run with masks of default size shortened to its sequences.

    Affects masks if `paths` contains their kind and not their size. The default size keeps its share of
    `context_length`, or shows a quarter of a sequence if it would hide nothing.
    """
    values = run.model.model_dump()
    for name, layer in run.model.layers_by_kind.items():
        at = "model." if name == "default" else f"model.layer_kinds.{name}."
        if mask := _shortened(layer, run.model, f"{at}attention.mask.", paths, context_length):
            table = values if name == "default" else values["layer_kinds"][name]
            table["attention"]["mask"] = mask
    if values == run.model.model_dump():
        return run
    return run.model_copy(update={"model": ModelSpec.model_validate(values)})


def _shortened(
    layer: LayerSpec, model: ModelSpec, at: str, paths: Collection[str], context_length: int
) -> dict[str, object]:
    """Return the values of a layer's mask if it is shortened, else nothing."""
    if f"{at}kind" not in paths or not isinstance(layer.attention, MaskedAttention):
        return {}
    mask, share = layer.attention.mask, model.context_length / context_length
    if any(f"{at}{size}" in paths for size in {*dict(mask.in_tokens), *mask.extent}):
        return {}
    # Loads torch; a misspelt name is reported earlier.
    from archwright.parts.masks import is_full

    num_heads = layer.attention.heads(model.dim)["num_heads"]
    if mask.reach and is_full(mask, num_heads, context_length):
        share = USUAL_SHARE * model.context_length / mask.reach
    return mask.model_dump() | mask.shortened(share) if share < 1 else {}
