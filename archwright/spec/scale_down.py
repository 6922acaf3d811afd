"""Published models at the size of an experiment: the same choices, with fewer and narrower layers."""

import math
from typing import TYPE_CHECKING, Any

from archwright.spec.choice import Choice, ScaleDown
from archwright.spec.merge import validated

if TYPE_CHECKING:
    from archwright.spec.model_spec import ModelSpec
    from archwright.spec.run_spec import RunSpec

Table = dict[str, Any]

TINY_DIM, TINY_HEAD_DIM, TINY_LAYERS, TINY_CONTEXT, TINY_EXPERTS = 64, 16, 4, 128, 4
"""Sizes of a tiny model: 0.3 to 1.3M parameters with 4,096 tokens, or 1.5M with wide hidden layers."""
MOST_TINY_LAYERS = 16
"""Most layers of a tiny model with whole cycles."""


def tiny(spec: "ModelSpec") -> "ModelSpec":
    """Return a model with every choice of `spec` that trains in seconds on one core.

    It has each layer of prefix and suffix and at least one whole cycle between them.
    """
    small = scaled_down(
        spec, TINY_DIM, TINY_HEAD_DIM, _few_layers(spec), TINY_CONTEXT, TINY_EXPERTS
    )
    return small.model_copy(update={"name": f"{spec.name}-tiny"})


def _few_layers(spec: "ModelSpec") -> int:
    """Return the least number of layers with whole cycles, at least four if the stack has four.

    Without a short cycle (Nemotron-H), the first layers that contain each kind are enough.
    """
    layers = spec.layers
    fixed, cycle = len(layers.prefix) + len(layers.suffix), len(layers.cycle)
    if fixed > 2 * TINY_LAYERS:  # `scaled_down` then keeps each kind once per end
        fixed = sum(len({*end}) for end in (layers.prefix, layers.suffix))
    whole_cycles = fixed + cycle * max(1, math.ceil((TINY_LAYERS - fixed) / cycle))
    if whole_cycles > MOST_TINY_LAYERS:
        names = layers.names(spec.num_layers)
        whole_cycles = max(TINY_LAYERS, *(names.index(name) + 1 for name in {*names}))
    return min(spec.num_layers, whole_cycles)


def tiny_run(run: "RunSpec") -> "RunSpec":
    """Return a run of the tiny model, with "-tiny" appended to its name."""
    return run.model_copy(update={"model": tiny(run.model), "name": f"{run.name}-tiny"})


def scaled_down(
    spec: "ModelSpec",
    dim: int,
    head_dim: int,
    num_layers: int,
    context_length: int,
    num_experts: int,
) -> "ModelSpec":
    """Return a model with the same choices and another shape; its vocabulary follows the tokenizer.

    Groups of query heads keep their share, hidden layers their ratio, and windows their share of the text. A mixture
    has at most `num_experts` experts and chooses at most 2 per token. Encoders and generators keep their share of the
    decoder's layers, width and length.
    """
    old = spec.sizes
    to = ScaleDown(old, dim, min(head_dim, dim), context_length, num_experts)
    values = spec.model_dump()
    for name, layer in spec.layers_by_kind.items():
        for axis, choice in layer:
            if isinstance(choice, Choice) and name == "default":
                _change(values[axis], choice.scaled_down(to))
            elif isinstance(choice, Choice):
                partial = values["layer_kinds"][name].get(axis, {})
                _change(partial, _stated(choice.scaled_down(to), partial, choice))
    if isinstance(spec.embedding.dim, int):
        values["embedding"]["dim"] = to.width(spec.embedding.dim)
    values["head"] |= spec.head.scaled_down(spec.dim, dim)
    layers = spec.layers
    if len(layers.prefix) + len(layers.suffix) + len(layers.cycle) > num_layers:
        # To leave room for the cycle, each end has each kind once.
        for end in ("prefix", "suffix"):
            values["layers"][end] = tuple(dict.fromkeys(getattr(layers, end)))
    for name, stack in (("encoder", spec.encoder_model), ("generator", spec.generator_model)):
        if stack is not None:
            values[name] |= _beside(spec, name, stack, to, head_dim, num_layers)
    values |= {
        "dim": dim,
        "num_layers": num_layers,
        "context_length": context_length,
        "vocab_size": "auto",
    }
    return validated(type(spec), values)


def _beside(
    spec: "ModelSpec",
    name: str,
    stack: "ModelSpec",
    to: ScaleDown,
    head_dim: int,
    num_layers: int,
) -> Table:
    """Return the values of the encoder or generator of a smaller model."""
    share = num_layers / spec.num_layers
    layers = max(_few_layers(stack) if share < 1 else 1, round(share * stack.num_layers))
    length = max(8, round(to.context_share * stack.context_length))
    dim = to.dim if stack.dim == spec.dim else to.width(stack.dim)
    small = scaled_down(stack, dim, head_dim, layers, length, to.num_experts)
    values = small.model_dump()
    given = getattr(spec, name).model_dump()
    # "auto" values stay "auto".
    return {name: values[name] for name in given.keys() & values.keys() if given[name] != "auto"}


def _change(table: Table, changes: Table) -> None:
    """Update a table with other values, including nested tables."""
    for name, value in changes.items():
        if isinstance(value, dict):
            _change(table[name], value)
        else:
            table[name] = value


def _stated(changes: Table, partial: Table, choice: Choice) -> Table:
    """Return the changes of values that a layer kind sets itself."""
    found = {}
    for name, value in changes.items():
        own = getattr(choice, name)
        if isinstance(value, dict):
            if inner := _stated(value, partial.get(name, {}), own):
                found[name] = inner
        elif name in partial or ("kind" in partial and type(own) is int and value != own):
            found[name] = value
    return found
