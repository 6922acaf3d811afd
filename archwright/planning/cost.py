"""Parameters of built models and traced FLOPs, by part."""

import math

from torch import nn

from archwright.catalogue.parameter_counts import Counts
from archwright.data.batches import TextLengths
from archwright.model.build import build
from archwright.model.model import Decoder
from archwright.parts.linear import Linear
from archwright.planning.trace import trace
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import RunSpec

BACKWARD = 2
"""Cost of a backward pass in forward passes: one product each for the gradients of input and weight."""


LAYER_PARTS = {
    "feedforward": "feed-forward",
    "residual": "norms",
    "embedding_skip": "embedding skip",
    "layer_embedding": "layer embeddings",
    "layer_embedding.norm": "norms",
    "cross_attention": "cross-attention",
    "attention.value_embedding": "value embeddings",
}
"""Displayed names of a layer's modules, by attribute, if they differ."""


def parameters_by_part(model: nn.Module) -> dict[str, int]:
    """Return the number of parameters per part, summed over layers.

    Keys: dotted names without layer indices (`embedding`, `layers.attention.query`). Tied tables count as embedding.
    """
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        words = [word for word in name.split(".")[:-1] if not word.isdigit()]
        part = ".".join(words) or name
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


def active_parameters(model: nn.Module) -> int:
    """Return the number of parameters per token, without its inactive experts."""
    unused = (
        (1 - m.active_fraction) * sum(p.numel() for p in m.parameters(recurse=False))
        for m in model.modules()
        if isinstance(m, Linear)
    )
    return sum(p.numel() for p in model.parameters()) - round(sum(unused))


def flops_per_token(model: Decoder, length: int, target_length: int | None = None) -> float:
    """Return the training FLOPs per token of a text of `length` tokens.

    3 * (2 * weights of all matrix products + 2 * num_heads * (key width + value width) * visible keys per query).
    A multiplication and an addition count as two. Only the active experts of a token count. Norms, activations and the
    softmax are excluded.

    Args:
        target_length: decoder tokens for a source of `length`. Default: `length`. FLOPs are per token of the source,
            and include its share of the decoder tokens.
    """
    return (1 + BACKWARD) * sum(forward_flops(model, length, target_length).values())


def forward_flops(
    model: Decoder, length: int, target_length: int | None = None
) -> dict[str, float]:
    """Return the forward FLOPs per token by part, summed over layers.

    Matrix products have the names of `parameters_by_part`. Other products of branches, such as scores, have the names
    `layers.<branch>`, `encoder.layers.<branch>` or `generator.layers.<branch>`. See `flops_per_token`.
    """
    found = trace(model, "forward", length=length, target_length=target_length)
    by_part: dict[str, float] = {}
    for key, number in found.flops.items():
        if key.sort != "arithmetic" and number:
            by_part[key.part] = by_part.get(key.part, 0.0) + number / length
    return by_part


def prefill_flops(model: Decoder, length: int) -> float:
    """Return the FLOPs of reading a text or source, with one token's logits."""
    return trace(model, "prefill", length=length, precision="bf16").total("product", "leaf")


def next_token_flops(model: Decoder, length: int) -> float:
    """Return the FLOPs of the last (decoder) token, with earlier tokens cached."""
    return trace(model, "decode", length=length, precision="bf16").total("product", "leaf")


def run_flops_per_token(run: RunSpec, model: Decoder, lengths: TextLengths | None = None) -> float:
    """Return the training FLOPs per token for the objective of a run.

    With full attention, FLOPs per token are linear in the length of a text, so the mean length gives the mean FLOPs.
    With attention windows they are concave, and the result is an upper bound.

    Args:
        lengths: lengths of the texts in batches. Default: full context windows, an upper bound for shorter texts.
    """
    length = run.model.context_length
    if lengths is None:
        return flops_per_token(model, length, run.objective.target_length(length))
    below = max(1, math.floor(lengths.mean))
    low, high = (
        flops_per_token(model, n, max(1, round(lengths.target * n))) for n in (below, below + 1)
    )
    return lengths.share * (low + (lengths.mean - below) * (high - low))


def counts_of(spec: ModelSpec) -> Counts:
    """Return the parameter counts of a spec, from a model on the meta device."""
    return counted(build(spec, device="meta"))


def counted(model: Decoder) -> Counts:
    """Return the parameter counts of a model by part."""
    parts: dict[str, int] = {}
    for name, number in parameters_by_part(model).items():
        part = part_of(name)
        parts[part] = parts.get(part, 0) + number
    return Counts(parts, active_parameters(model))


def forward_flops_by_part(
    model: Decoder, length: int, target_length: int | None = None
) -> dict[str, float]:
    """Return the forward FLOPs per token of a sequence of `length` tokens, by part.

    Parts of `counted` have their matrix products. Work of mixers between tokens, such as scores, has separate parts.

    Args:
        target_length: as in `flops_per_token`.
    """
    parts: dict[str, float] = {}
    mixers = {name for layer in model.all_layers for name in layer.mixers()}
    for name, number in forward_flops(model, length, target_length).items():
        part = part_of(name)
        if name.startswith("layers.") and name.removeprefix("layers.") in mixers:
            part = f"{part} between tokens"
        if number:
            parts[part] = parts.get(part, 0.0) + number
    return parts


def part_of(name: str) -> str:
    """Return the displayed part of a model for a dotted module name."""
    first, *below = name.split(".")
    if name.startswith("relatives.layer_embedding"):
        return "norms"
    if first == "layers":
        return LAYER_PARTS.get(".".join(below), LAYER_PARTS.get(below[0], below[0]))
    return {"norm": "norms", "project_in": "embedding"}.get(first, first)
