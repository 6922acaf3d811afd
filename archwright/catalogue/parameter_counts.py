"""Parameter counts in closed form, computed without building a model."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from archwright.spec.attention import MaskedAttention
from archwright.spec.choice import Choice, Spec
from archwright.spec.model_spec import LayerSpec, ModelSpec


@dataclass(frozen=True)
class Counts:
    """Number of parameters by part, and the number that one token uses."""

    parts: dict[str, int]
    active: int

    @property
    def total(self) -> int:
        """Total number of parameters."""
        return sum(self.parts.values())


def parameter_counts(spec: ModelSpec) -> Counts | None:
    """Return parameter counts by part, or None for models with plug-ins.

    Raises:
        UserError: rules between axes are violated.
    """
    spec = spec.resolved()
    if not _is_ours(spec):
        return None
    dim, vocab_size, encoder = spec.dim, int(spec.vocab_size), spec.encoder_model
    stack, idle = _of_stack(spec, dim if encoder is None else encoder.output_dim)
    parts = {"embedding": _table(spec), **stack}
    if encoder is not None:
        stack, stack_idle = _of_stack(encoder, encoder.dim)
        table = _table(encoder)
        if spec.encoder.shares_embedding:  # only a projection after the norm is separate
            normed = encoder.embedding.project == "normed"
            table = encoder.embedding.num_projection_parameters(encoder.dim) if normed else 0
        parts["encoder"], idle = sum(stack.values()) + table, idle + stack_idle
    generator = spec.generator_model
    if generator is not None:  # it shares the detector's embedding, positions and norm
        stack, stack_idle = _of_stack(generator, generator.dim)
        inner = {part: n for part, n in stack.items() if part not in ("position", "embedding_norm")}
        width = generator.embedding.num_projection_parameters(generator.dim)
        head = generator.head.num_parameters(generator.output_dim, generator.head_width, vocab_size)
        parts["generator"], idle = sum(inner.values()) + width + head, idle + stack_idle
    parts["head"] = spec.head.num_parameters(spec.output_dim, spec.head_width, vocab_size)
    parts["sequence_head"] = spec.sequence_head.num_parameters(spec.output_dim)
    parts = {part: number for part, number in parts.items() if number}
    return Counts(parts, sum(parts.values()) - idle)


def _table(spec: ModelSpec) -> int:
    """Return the parameter count of the embedding table and its projection."""
    return spec.embedding.num_parameters(spec.dim, int(spec.vocab_size))


def _of_stack(spec: ModelSpec, memory_dim: int) -> tuple[dict[str, int], int]:
    """Return parameter counts by part, and the number of parameters that a token does not use."""
    dim, vocab_size, kinds = spec.dim, int(spec.vocab_size), spec.layers.names(spec.num_layers)
    layers, sum_width = [spec.layers_by_kind[name] for name in kinds], spec.embedding.sum_width(dim)
    parts = {
        "position": spec.position.num_absolute_parameters(sum_width, spec.context_length),
        "embedding_norm": spec.embedding.norm.num_parameters(sum_width),
        "relatives": _relatives(layers, dim),
        "norms": spec.norm.num_parameters(spec.output_dim) if layers[-1].residual.final_norm else 0,
        "embedding skip": 0,
        "layer embeddings": 0,
        "attention": 0,
        "value embeddings": 0,
        "recurrence": 0,
        "cross-attention": 0,
        "feed-forward": 0,
    }
    # Embeddings per layer share the norm of their projections.
    shared = {(layer.norm, layer.residual.layer_embedding) for layer in layers}
    parts["norms"] += sum(n.num_parameters(width) for n, width in shared if width != "none")
    idle = 0
    for name, number in Counter({*kinds} if spec.layers.shared else kinds).items():
        layer = spec.layers_by_kind[name]
        attention, feedforward = layer.attention, layer.feedforward
        norms = layer.residual.num_norms_of(layer.groups) * layer.norm.num_parameters(dim)
        if (width := layer.residual.layer_embedding) != "none":
            norms += layer.norm.num_parameters(dim)
            parts["layer embeddings"] += number * width * (vocab_size + 3 * dim)
        position = 0 if layer.position.is_shared else _position(layer, dim)
        if isinstance(attention, MaskedAttention):
            position *= 1 + attention.further_positions
        parts["norms"] += number * norms
        parts["embedding skip"] += number * layer.residual.num_parameters
        parts["attention"] += number * (attention.num_parameters(dim) + position)
        parts["value embeddings"] += number * attention.num_table_parameters(vocab_size)
        recurrence = layer.recurrence
        parts["recurrence"] += number * recurrence.num_parameters(dim)
        parts["recurrence"] -= recurrence.num_later_parameters(dim)
        cross = layer.cross_attention.num_cross_parameters(dim, memory_dim)
        parts["cross-attention"] += number * cross
        parts["feed-forward"] += number * feedforward.num_parameters(dim)
        idle += number * (feedforward.num_parameters(dim) - feedforward.num_active_parameters(dim))
    return parts, idle


def _relatives(layers: list[LayerSpec], dim: int) -> int:
    """Return the parameter count of relative positions, which attentions of equal size share."""
    counts: dict[Hashable, int] = {}
    for layer in layers:
        attention = layer.attention
        counts.update(attention.num_shared_parameters(dim))
        if layer.position.is_shared and isinstance(attention, MaskedAttention):
            sizes = attention.heads(dim)["num_heads"], attention.key_dim(dim)
            counts[layer.position, *sizes, attention.mask.causal] = _position(layer, dim)
            if attention.further_positions:
                counts["further", layer.position, *sizes] = _position(layer, dim)
    return sum(counts.values())


def _position(layer: LayerSpec, dim: int) -> int:
    """Return the parameter count of positions within a layer's attention."""
    if not isinstance(layer.attention, MaskedAttention):
        return 0
    num_heads = layer.attention.heads(dim)["num_heads"]
    return layer.position.num_parameters(dim, num_heads, layer.attention.key_dim(dim))


def _is_ours(spec: Spec) -> bool:
    """True if no choice in a spec comes from a plug-in."""
    inner = [value for _, value in spec if isinstance(value, Spec)]
    if isinstance(spec, ModelSpec):
        inner += spec.layers_by_kind.values()
    ours = not isinstance(spec, Choice) or type(spec).__module__.startswith("archwright.")
    return ours and all(map(_is_ours, inner))
