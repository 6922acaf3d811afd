"""Pipeline stages before any other split; a single stage is the whole model."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
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


class Gathers(NamedTuple):
    """How FSDP gathers weights."""

    itemsize: int = 2
    """Bytes of a gathered weight of a layer or the head (`scale.param_dtype`)."""
    times: int = 2
    """All-gathers of a layer: two per micro-batch, or one per step if its weights stay (`scale.reshard`)."""

    @classmethod
    def of(cls, run: RunSpec, pipeline: int) -> "Gathers":
        """Return the settings of a run."""
        frees = pipeline == 1 if run.scale.reshard == "auto" else run.scale.reshard
        return cls(4 if run.scale.param_dtype == "float32" else 2, 2 if frees else 1)


@dataclass(frozen=True)
class Stage:
    """Pipeline stage; the first has the embedding, the last the head.

    FSDP gathers each layer, an untied embedding and its head by itself, and all other weights together.
    """

    num_layers: int
    dim: int
    """Width of the residual stream."""
    num_neighbours: int
    """Stages that exchange activations with this stage."""
    weights: Weights
    of_layers: Weights
    """Weights of layers that are gathered one by one."""
    largest: Weights
    """Weights of the largest of them."""
    embedding: Weights
    head: Weights
    rest: Weights
    """Weights gathered together: the last norm, tied tables, and layers that share weights or are reversible."""
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
        self.model, self.length, self.run = model, length, run
        self.degrees = Degrees.of(model, length)
        self._optimizer = optimizer_bytes_by_parameter(run, model)
        self.target_length = run.objective.target_length(length)
        read = length if model.spec.encoder_model is None else self.target_length
        self.logits = logit_bytes(model, 1) * read / model.spec.context_length
        self._stages: dict[tuple[int, int], tuple[Stage, ...]] = {}
        self.activations = LayerActivations(
            model, length, self.target_length, "autocast" if narrow else "fp32"
        )

    @cached_property
    def parameters(self) -> int:
        """Number of parameters."""
        return self.model.num_parameters()

    def stages(self, pipeline: int, chunks: int = 1) -> tuple[Stage, ...]:
        """Return the stages of a pipeline; a single stage is the whole model. Each has every pipeline-th run."""
        if (pipeline, chunks) not in self._stages:
            layers = [*layers_of(self.model)]
            ends = [0, *accumulate(layers_by_stage(len(layers), pipeline * chunks))]
            runs = [layers[start:end] for start, end in pairwise(ends)]
            self._stages[pipeline, chunks] = tuple(
                self._stage(own, place == 0, place == pipeline - 1, chunks)
                for place in range(pipeline)
                for own in ([layer for run in runs[place::pipeline] for layer in run],)
            )
        return self._stages[pipeline, chunks]

    def _stage(
        self, layers: list[tuple[Layer, ModelSpec, int]], is_first: bool, is_last: bool, chunks: int
    ) -> Stage:
        by_layer, first, last = self._weights
        own = [*dict.fromkeys(layer for layer, *_ in layers)]
        weights = {at: each for layer in own for at, each in by_layer[layer].items()}
        around = (first if is_first else {}) | (last if is_last else {})
        around = {at: each for at, each in around.items() if at not in weights}
        alone = [by_layer[layer] for layer in own if layer in self._units]
        of_layers = {at: each for by_id in alone for at, each in by_id.items()}
        embedding, head = ({at: around[at] for at in end if at in around} for end in self._ends)
        gathered = of_layers.keys() | embedding.keys() | head.keys()
        every, spec = weights | around, self.model.spec
        return Stage(
            len(layers),
            spec.dim * spec.residual.streams,
            2 * chunks - is_first - is_last,
            _added_up(every),
            _added_up(of_layers),
            max(map(_added_up, alone), key=lambda weights: sum(weights.values()), default={}),
            _added_up(embedding),
            _added_up(head),
            _added_up({at: each for at, each in every.items() if at not in gathered}),
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
    def _units(self) -> set[nn.Module]:
        """Layers that FSDP gathers one by one (`scale.fsdp.units`, whose import of FSDP is slow)."""
        if self.model.spec.is_reversible:
            return set()
        calls, inside = Counter(self.model.all_layers), dict[nn.Module, None]()
        for layer in calls:
            inside |= dict.fromkeys(layer.modules())
        outside = {p for m in self.model.modules() if m not in inside for p in m.parameters(False)}
        uses = Counter(p for layer in calls for p in layer.parameters())
        return {
            layer
            for layer, number in calls.items()
            if number == 1 and all(uses[p] == 1 and p not in outside for p in layer.parameters())
        }

    @cached_property
    def _ends(self) -> tuple[set[int], set[int]]:
        """Ids of the weights of embedding and head, if FSDP gathers each by itself."""
        model = self.model
        if type(model) is not Decoder or model.head.weight is model.embedding.weight:
            return set(), set()
        return {id(p) for p in model.embedding.parameters()}, {
            id(p) for p in model.head.parameters()
        }

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
