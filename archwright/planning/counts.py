"""Numbers of parameters of any model, counted from the built one."""

from archwright.catalogue.parameter_counts import Counts
from archwright.model.build import build
from archwright.model.language_model import LanguageModel
from archwright.planning.cost import active_parameters, parameters_by_part
from archwright.spec.model_spec import ModelSpec

LAYER_PARTS = {
    "feedforward": "feed-forward",
    "residual": "norms",
    "embedding_skip": "embedding skip",
    "cross_attention": "cross-attention",
    "attention.value_embedding": "value embeddings",
}
"""Names of a layer's modules for readers, where they differ from the attributes'."""


def counts_of(spec: ModelSpec) -> Counts:
    """Return a model's numbers of parameters, built without memory: those of each part, and how many one
    token meets."""
    model = build(spec, device="meta")
    assert isinstance(model, LanguageModel)
    return counted(model)


def counted(model: LanguageModel) -> Counts:
    """Return the numbers of parameters of a model that is built."""
    parts: dict[str, int] = {}
    for name, number in parameters_by_part(model).items():
        first, *below = name.split(".")
        part = "norms" if first == "norm" else first
        if first == "layers":
            part = LAYER_PARTS.get(".".join(below), LAYER_PARTS.get(below[0], below[0]))
        parts[part] = parts.get(part, 0) + number
    return Counts(parts, active_parameters(model))
