"""Pipeline stages before any other split; a single stage is the whole model."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import torch
from torch import nn

from archwright.model.model import Decoder, Layer
from archwright.optim.groups import build_optimizers
from archwright.optim.muon import Muon
from archwright.parts.linear import Embedding, GroupedLinear, Linear
from archwright.parts.mixers import AttentionMixer
from archwright.planning.activations import LayerActivations
from archwright.planning.memory import logit_bytes
from archwright.planning.split import Degrees, blocks_of, share
from archwright.planning.trace import kinds_of
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import RunSpec

PER_WEIGHT = 4
"""Bytes of a weight, gradient or moment in float32."""


class Kind(NamedTuple):
    """Sharding and optimizer state of weights."""

    blocks: int
    """Equal blocks for tensor parallelism; 1: replicated."""
    is_expert: bool
    """True for weights of experts, also sharded by expert parallelism."""
    is_cast: bool
    """True for weights of products, cast to 16 bits by autocast."""
    optimizer: int
    """Bytes of optimizer state per weight."""


Weights = Mapping[Kind, int]
"""Number of weights by kind."""
ById = dict[int, tuple[Kind, int]]
"""Kind and number of elements of parameters, by id."""


@dataclass(frozen=True)
class Stage:
    """Pipeline stage; the first has the embedding, the last the head."""

    num_layers: int
    dim: int
    """Width of the residual stream."""
    num_neighbours: int
    """Stages that exchange activations with this stage."""
    weights: Weights
    largest: Weights
    """Weights of the largest layer."""
    around: Weights
    """Weights outside layers: embedding, last norm, head."""
    layers: Mapping[int, int]
    """Number of layers by kind."""
    logits: float
    """Bytes of the logits of one text."""
    branch_width: float
    """Total width of branch outputs, summed across tensor-parallel devices."""
    keys: Sequence[tuple[int, int]]
    """Keys and values of each attention, exchanged by context parallelism: blocks for tensor parallelism, and elements
    per token."""
    sent_to_experts: float
    """Elements per token sent to experts: width times top_k, summed over layers."""

    def keys_on_a_device(self, tensor: int) -> float:
        """Return the keys and values per token of all layers per device."""
        return sum(number * share(blocks, tensor) for blocks, number in self.keys)

    def most_keys_on_a_device(self, tensor: int) -> float:
        """Return the `keys_on_a_device` of the largest attention."""
        return max((number * share(blocks, tensor) for blocks, number in self.keys), default=0.0)


class Needs:
    """Memory of a training run before sharding; accepts meta models."""

    def __init__(self, run: RunSpec, model: Decoder, length: int, *, narrow: bool = True) -> None:
        self.model, self.length = model, length
        self.degrees = Degrees.of(model, length)
        self._optimizer = optimizer_bytes_by_parameter(run, model)
        self.target_length = run.objective.target_length(length)
        read = length if model.spec.encoder_model is None else self.target_length
        self.logits = logit_bytes(model, 1) * read / model.spec.context_length
        self._stages: dict[int, tuple[Stage, ...]] = {}
        self.activations = LayerActivations(
            model, length, self.target_length, "autocast" if narrow else "fp32"
        )

    @cached_property
    def parameters(self) -> int:
        """Number of parameters."""
        return self.model.num_parameters()

    def stages(self, pipeline: int) -> tuple[Stage, ...]:
        """Return the stages of a pipeline; a single stage is the whole model."""
        if pipeline not in self._stages:
            layers = [*layers_of(self.model)]
            numbers, waiting = layers_by_stage(len(layers), pipeline), iter(layers)
            self._stages[pipeline] = tuple(
                self._stage([*islice(waiting, number)], place == 0, place == pipeline - 1)
                for place, number in enumerate(numbers)
            )
        return self._stages[pipeline]

    def _stage(
        self, layers: list[tuple[Layer, ModelSpec, int]], is_first: bool, is_last: bool
    ) -> Stage:
        by_layer, first, last = self._weights
        of_layers = [by_layer[layer] for layer in dict.fromkeys(layer for layer, *_ in layers)]
        weights = {at: each for by_id in of_layers for at, each in by_id.items()}
        around = (first if is_first else {}) | (last if is_last else {})
        around = {at: each for at, each in around.items() if at not in weights}
        spec = self.model.spec
        return Stage(
            len(layers),
            spec.dim * spec.residual.streams,
            2 - is_first - is_last,
            _added_up(weights | around),
            max(map(_added_up, of_layers), key=lambda weights: sum(weights.values())),
            _added_up(around),
            Counter(kind for *_, kind in layers),
            self.logits if is_last else 0.0,
            float(sum(spec.dim * len(layer.branches) for layer, spec, _ in layers)),
            [
                (mixer.kept_blocks, mixer.kept_per_token)
                for layer, *_ in layers
                for mixer in layer.mixers().values()
                if isinstance(mixer, AttentionMixer)
            ],
            sum(
                m.active_fraction * len(m.weight) * m.d_out
                for layer, *_ in layers
                for m in layer.modules()
                if isinstance(m, GroupedLinear) and m.is_residual_output
            ),
        )

    @cached_property
    def _weights(self) -> tuple[dict[Layer, ById], ById, ById]:
        """Parameters of each layer, before the layers or shared by all, and after the layers.

        Ids let shared parameters count once; a tied table counts at both ends.
        """
        model = self.model
        # Parameters of products, including a tied table.
        maps = (m for m in model.modules() if isinstance(m, Linear))
        cast = {id(p) for m in maps for p in m.parameters(recurse=False)}

        def kinds(module: nn.Module, *, in_layer: bool) -> ById:
            by_id: ById = {}
            for m in module.modules():
                for name, parameter in m.named_parameters(recurse=False):
                    blocks = _blocks(m, name, in_layer=in_layer)
                    state, is_cast = self._optimizer.get(id(parameter), 0), id(parameter) in cast
                    kind = Kind(blocks, isinstance(m, GroupedLinear), is_cast, state)
                    by_id.setdefault(id(parameter), (kind, parameter.numel()))
            return by_id

        layers = {layer: kinds(layer, in_layer=True) for layer in dict.fromkeys(model.all_layers)}
        last: ById = {}
        for module in (model.norm, model.head, model.sequence_head):
            if module is not None:
                last |= kinds(module, in_layer=False)
        tables = {id(m.weight) for m in model.modules() if isinstance(m, Embedding)}
        elsewhere = {*last} - tables | {at for by_id in layers.values() for at in by_id}
        every = kinds(model, in_layer=False)
        return layers, {at: each for at, each in every.items() if at not in elsewhere}, last


def layers_by_stage(num_layers: int, stages: int) -> list[int]:
    """Return the number of layers per stage, one less at the ends first,
    because these also have the head and the embedding (Grattafiori et al., 2024, section 3.3.2)."""
    most = -(-num_layers // stages)
    found = [most] * stages
    places = [at for i in range(stages) for at in dict.fromkeys((stages - 1 - i, i))]
    for at in places[: most * stages - num_layers]:
        found[at] -= 1
    return found


def optimizer_bytes(run: RunSpec, model: Decoder) -> int:
    """Return the optimizer bytes: one (Muon) or two float32 moments per parameter."""
    kept = optimizer_bytes_by_parameter(run, model)
    return sum(kept.get(id(p), 0) * p.numel() for p in model.parameters())


def optimizer_bytes_by_parameter(run: RunSpec, model: Decoder) -> dict[int, int]:
    """Return the optimizer bytes per element of each parameter, by id."""
    optimizers = build_optimizers(model, run.optimizer, precision=torch.bfloat16)
    return {
        id(parameter): PER_WEIGHT * (1 if isinstance(optimizer, Muon) else 2)
        for optimizer in optimizers.values()
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def _added_up(weights: ById) -> Weights:
    found: Counter[Kind] = Counter()
    for kind, number in weights.values():
        found[kind] += number
    return found


def _blocks(m: nn.Module, name: str, *, in_layer: bool) -> int:
    """Return the equal blocks of a parameter for tensor parallelism; default 1."""
    if isinstance(m, Embedding):
        return len(m.weight) if m.holds_tokens and name == "weight" else 1
    if not isinstance(m, Linear) or not (in_layer or m.is_lm_head):
        return 1
    return 1 if name == "bias" and m.is_residual_output else blocks_of(m)


def layers_of(model: Decoder) -> Iterator[tuple[Layer, ModelSpec, int]]:
    """Yield each layer with its stack's spec and its kind's number."""
    number = 0
    assert isinstance(model, Decoder)
    for stack in model.stacks:
        kinds = kinds_of(stack)
        kind_at = {place: number + i for i, places in enumerate(kinds) for place in places}
        for place, layer in enumerate(stack.stack):
            yield layer, stack.spec, kind_at[place]
        number += len(kinds)
