"""Bytes on each device while a model is trained, by how it is split and what is computed again."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch

from archwright.model.language_model import LanguageModel
from archwright.model.layer import Layer
from archwright.optim.groups import build_optimizers
from archwright.optim.muon import Muon
from archwright.parts.linear import Linear
from archwright.planning.memory import PER_ACTIVATION, WHOLE_LOGITS, logit_bytes
from archwright.spec.run_spec import RunSpec

PER_WEIGHT = 4
"""Bytes: a weight, a gradient, or a moment, in float32."""
PER_GATHERED = 2 * 2 + 4
"""Bytes for each weight of a layer that FSDP gathers: in 16 bits, as well as the next one, and its gradient."""
USABLE = 0.9
"""Share of a device's memory that a plan fills; the rest is for kernels and what is lost between tensors."""
CHECKPOINTING = ("none", "selective", "full")
"""What is computed again in the backward pass: nothing; norms, activations and gates; all of a layer."""
TENSOR_PARALLEL = (1, 2, 4, 8)
"""Numbers of devices that share a layer: those inside one server."""


@dataclass(frozen=True)
class Split:
    """How a training is spread over devices."""

    devices: int
    sharded: bool = False
    """Each device holds its share of weights, gradients and moments (FSDP, ZeRO-3) in place of all of them (DDP)."""
    tensor_parallel: int = 1
    """Devices that share each layer and its activations, which are also cut up along the text."""

    @property
    def ranks(self) -> int:
        """Groups of devices that read texts of their own."""
        return self.devices // self.tensor_parallel

    @property
    def name(self) -> str:
        """What it is called."""
        data = "one device" if self.devices == 1 else "FSDP" if self.sharded else "DDP"
        if self.tensor_parallel == 1:
            return data
        return f"{data if self.ranks > 1 else ''} tensor parallel {self.tensor_parallel}".strip()


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes on one device; those of weights, gradients and optimizer are counted, others estimated."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    """Of the layers that FSDP holds whole for a while."""
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """Bytes in all."""
        return float(sum(asdict(self).values()))


@dataclass(frozen=True)
class Setup:
    """A way to train, and what it takes."""

    split: Split
    checkpointing: str
    memory: TrainingMemory


@dataclass(frozen=True)
class Needs:
    """What a training keeps in all, before it is split."""

    parameters: int
    largest_layer: int
    """Parameters of the layer with most."""
    optimizer: float
    activations: dict[str, float]
    """Bytes of one text, by what is computed again."""
    logits: float

    @classmethod
    def of(cls, run: RunSpec, model: LanguageModel, length: int) -> "Needs":
        """Return what a step on one text of `length` tokens needs."""
        logits = logit_bytes(model, 1) * length / model.spec.context_length
        return cls(
            model.num_parameters(),
            max(sum(p.numel() for p in layer.parameters()) for layer in model.all_layers),
            optimizer_bytes(run, model),
            {name: activation_bytes(model, length, name) for name in CHECKPOINTING},
            min(logits, WHOLE_LOGITS),
        )


def split_one(run: RunSpec, model: LanguageModel, checkpointing: str) -> float:
    """Return the bytes of training on one device, with a text of the context at a time."""
    needs = Needs.of(run, model, model.spec.context_length)
    return next(s.memory.total for s in setups(needs, 1) if s.checkpointing == checkpointing)


def setups(needs: Needs, devices: int) -> Iterator[Setup]:
    """Yield ways to train, those first that exchange and compute least."""
    for split in _splits(devices):
        shards = devices if split.sharded else split.tensor_parallel
        per_part = PER_WEIGHT * needs.parameters / shards
        for checkpointing, activations in needs.activations.items():
            memory = TrainingMemory(
                weights=per_part,
                gradients=per_part,
                optimizer=needs.optimizer / shards,
                gathered=split.sharded * PER_GATHERED * needs.largest_layer / split.tensor_parallel,
                activations=activations / split.tensor_parallel,
                logits=needs.logits / split.tensor_parallel,
            )
            yield Setup(split, checkpointing, memory)


def _splits(devices: int) -> Iterator[Split]:
    yield Split(devices)
    for tensor_parallel in TENSOR_PARALLEL:
        if devices % tensor_parallel == 0 and devices > 1:
            yield Split(devices, devices > tensor_parallel, tensor_parallel)


def optimizer_bytes(run: RunSpec, model: LanguageModel) -> int:
    """Return the bytes of an optimizer's state: a mean of gradients for each parameter that Muon moves, and one of
    their squares beside it for others, in float32."""
    return sum(
        PER_WEIGHT * (1 if isinstance(optimizer, Muon) else 2) * parameter.numel()
        for optimizer in build_optimizers(model, run.optimizer, precision=torch.bfloat16).values()
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def activation_bytes(model: LanguageModel, length: int, checkpointing: str) -> float:
    """Return the bytes of what a text of `length` tokens leaves for the backward pass, in 16 bits.

    Per token, with attention whose kernel keeps no scores, and norms, activations and gates that are fused:

        none        what enters each norm and each branch, the result of each map, and what enters the maps that
                    write into the stream: 32 dim for a layer of GPT (Korthikanti et al., 2022, section 4.1, less
                    scores and dropout)
        selective   as none, without what norms, activations and gates give
        full        what enters each layer; and all of one layer, while it is computed again

    Of reversible layers, in any case what leaves the last, and all of one layer.
    """
    decoder = {*model.stack}
    beside = model.spec.encoder_model or model.spec.generator_model or model.spec
    kept = again = 0.0
    for spec in {id(spec): spec for spec in (model.spec, beside)}.values():
        kept += 2 * spec.dim * (spec.residual.num_streams == 2)
    for layer in model.all_layers:
        spec = model.spec if layer in decoder else beside
        is_reversible = spec.residual.num_streams == 2
        longer = length + spec.global_tokens
        if is_reversible or checkpointing == "full":
            kept += 0 if is_reversible else spec.dim * longer / length
            again = max(again, _values(layer, spec.dim, longer, "none") * longer / length)
        else:
            kept += _values(layer, spec.dim, longer, checkpointing) * longer / length
    return PER_ACTIVATION * length * (kept + again)


def _values(layer: Layer, dim: int, length: int, checkpointing: str) -> float:
    """Return the values per token that a layer leaves."""
    kept = float(len(layer.branches) * dim)  # what enters the norms, or the branches
    for name in layer.branches:
        is_mixer = name in layer.mixers()
        kept += layer.branch(name).kept_values_per_token(length)
        if checkpointing == "none":
            kept += dim
        for module in layer.branch(name).modules():
            if not isinstance(module, Linear):
                continue
            # Of experts, those that a token goes through.
            times = module.active_fraction * module.weight.numel() / (module.d_in * module.d_out)
            if not module.is_residual_output:
                kept += times * module.d_out
            elif is_mixer or checkpointing == "none":
                kept += times * module.d_in
    return kept
