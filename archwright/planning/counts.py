"""Parameter counts of built models."""

from archwright.catalogue.parameter_counts import Counts
from archwright.model.build import build
from archwright.model.model import Decoder
from archwright.planning.cost import active_parameters, forward_flops, parameters_by_part
from archwright.spec.model_spec import ModelSpec

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


def counts_of(spec: ModelSpec) -> Counts:
    """Return the parameter counts of a spec, from a model on the meta device."""
    model = build(spec, device="meta")
    assert isinstance(model, Decoder)
    return counted(model)


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
