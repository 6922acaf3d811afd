"""Numbers of parameters in closed form, for verbs that wait for nothing: no model is built."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from archwright.spec.attention import MaskedAttention
from archwright.spec.choice import Choice, Spec
from archwright.spec.model_spec import LayerSpec, ModelSpec


@dataclass(frozen=True)
class Counts:
    """Numbers of parameters: of each part, and how many one token meets, which of experts are few."""

    parts: dict[str, int]
    active: int

    @property
    def total(self) -> int:
        """The number of all parameters."""
        return sum(self.parts.values())


def parameter_counts(spec: ModelSpec) -> Counts | None:
    """Return a model's numbers of parameters, those of each part with any; None where a choice is from outside
    the package, and its part alone knows.

    Raises:
        UserError: what rules between axes forbid, one line each.
    """
    spec = spec.resolved()
    if not _is_ours(spec):
        return None
    dim, vocab_size, encoder = spec.dim, int(spec.vocab_size), spec.encoder_model
    own, idle = _of_stack(spec, dim if encoder is None else encoder.output_dim)
    found = {"embedding": _table(spec), **own}
    if encoder is not None:
        below, more = _of_stack(encoder, encoder.dim)
        table = _table(encoder)
        if spec.encoder.shares_embedding:  # but for a map behind the norm, which each stack has
            behind = encoder.embedding.project == "normed"
            table = encoder.embedding.num_projection_parameters(encoder.dim) if behind else 0
        found["encoder"], idle = sum(below.values()) + table, idle + more
    generator = spec.generator_model
    if generator is not None:  # behind the embedding of the other, with its positions and norm
        below, more = _of_stack(generator, generator.dim)
        within = {
            part: n for part, n in below.items() if part not in ("position", "embedding_norm")
        }
        width = generator.embedding.num_projection_parameters(generator.dim)
        head = generator.head.num_parameters(generator.output_dim, generator.head_width, vocab_size)
        found["generator"], idle = sum(within.values()) + width + head, idle + more
    found["head"] = spec.head.num_parameters(spec.output_dim, spec.head_width, vocab_size)
    found["sequence_head"] = spec.sequence_head.num_parameters(spec.output_dim)
    found = {part: number for part, number in found.items() if number}
    return Counts(found, sum(found.values()) - idle)


def _table(spec: ModelSpec) -> int:
    """Return the number of parameters of a table of embeddings and of what maps it into the stream."""
    return spec.embedding.num_parameters(spec.dim, int(spec.vocab_size))


def _of_stack(spec: ModelSpec, memory_dim: int) -> tuple[dict[str, int], int]:
    """Return the numbers of parameters of a stack by part, and of those that a token does not meet."""
    dim, vocab_size, kinds = spec.dim, int(spec.vocab_size), spec.layers.names(spec.num_layers)
    layers, sum_width = [spec.layers_by_kind[name] for name in kinds], spec.embedding.sum_width(dim)
    parts = {
        "position": spec.position.num_absolute_parameters(sum_width, spec.num_positions),
        "embedding_norm": spec.embedding.norm.num_parameters(sum_width),
        "global_tokens": spec.global_tokens * dim,
        "predicting_streams": spec.predicting_streams * sum_width,
        "relatives": _relatives(layers, dim),
        "norms": spec.norm.num_parameters(spec.output_dim) if layers[-1].residual.final_norm else 0,
        "embedding skip": 0,
        "attention": 0,
        "value embeddings": 0,
        "recurrence": 0,
        "cross-attention": 0,
        "feed-forward": 0,
    }
    idle = 0
    for name, number in Counter({*kinds} if spec.layers.shared else kinds).items():
        layer = spec.layers_by_kind[name]
        attention, feedforward = layer.attention, layer.feedforward
        norms = layer.residual.num_norms_of(layer.groups) * layer.norm.num_parameters(dim)
        if spec.global_tokens and layer.residual.norms_global_tokens and not attention.is_none:
            norms += layer.norm.num_parameters(dim)
        position = 0 if layer.position.is_shared else _position(layer, dim)
        if isinstance(attention, MaskedAttention):
            position *= 1 + attention.further_positions
        parts["norms"] += number * norms
        parts["embedding skip"] += number * layer.residual.num_parameters
        parts["attention"] += number * (attention.num_parameters(dim) + position)
        parts["value embeddings"] += number * attention.num_table_parameters(vocab_size)
        parts["recurrence"] += number * layer.recurrence.num_parameters(dim)
        cross = layer.cross_attention.num_cross_parameters(dim, memory_dim)
        parts["cross-attention"] += number * cross
        parts["feed-forward"] += number * feedforward.num_parameters(dim)
        idle += number * (feedforward.num_parameters(dim) - feedforward.num_active_parameters(dim))
    return parts, idle


def _relatives(layers: list[LayerSpec], dim: int) -> int:
    """Return the number of parameters of positions that attentions of the same sizes share."""
    found: dict[Hashable, int] = {}
    for layer in layers:
        attention = layer.attention
        found.update(attention.num_shared_parameters(dim))
        if layer.position.is_shared and isinstance(attention, MaskedAttention):
            sizes = attention.heads(dim)["num_heads"], attention.key_dim(dim)
            found[layer.position, *sizes, attention.mask.causal] = _position(layer, dim)
            if attention.further_positions:
                found["further", layer.position, *sizes] = _position(layer, dim)
    return sum(found.values())


def _position(layer: LayerSpec, dim: int) -> int:
    """Return the number of parameters of positions inside the attention of a layer."""
    if not isinstance(layer.attention, MaskedAttention):
        return 0
    num_heads = layer.attention.heads(dim)["num_heads"]
    return layer.position.num_parameters(dim, num_heads, layer.attention.key_dim(dim))


def _is_ours(spec: Spec) -> bool:
    """Tell whether all choices in a spec are the package's."""
    inner = [value for _, value in spec if isinstance(value, Spec)]
    if isinstance(spec, ModelSpec):
        inner += spec.layers_by_kind.values()
    ours = not isinstance(spec, Choice) or type(spec).__module__.startswith("archwright.")
    return ours and all(map(_is_ours, inner))
