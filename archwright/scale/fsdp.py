"""Sharding by torch's FSDP2: units are the layers, an untied embedding and its head, and all other modules.

FSDP2 all-gathers the parameters of a unit before its forward and backward pass, and reduce-scatters its gradients.
"""

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.export
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp import register_fsdp_forward_method as calls_forward

from archwright.model.model import Decoder, Output
from archwright.parts.linear import Embedding, GroupedLinear
from archwright.spec.scale import ParamDtype

# FSDP2 looks for tensors in the model's output; torch 2.11 does so only in registered containers.
with contextlib.suppress(ValueError):  # already registered
    torch.export.register_dataclass(Output)


def shard(
    model: Decoder,
    mesh: DeviceMesh,
    *,
    experts: Iterable[list[GroupedLinear]],
    expert_mesh: DeviceMesh | None,
    empty: set[nn.Parameter],
    param_dtype: ParamDtype,
    reshard: bool,
) -> dict[FSDPModule, bool]:
    """Shard a model's parameters along their first axis; return the units, with True for several shards.

    Args:
        model: If its parameters are on the meta device, shards get memory without values.
        mesh: Axis shard, or axes replicate and shard.
        experts: Maps that are gathered together, sharded over `expert_mesh`.
        empty: Parameters of other pipeline stages.
        param_dtype: Dtype of all-gathered weights of layers and head.
        reshard: Whether gathered weights of layers are freed between the passes.
    """
    # The model's outputs are never changed in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    # FSDP2 refuses scalar parameters.
    ignored = {p for p in model.parameters() if p.ndim == 0} | empty
    split = dict[nn.Module, bool]()

    def add(unit: nn.Module, dtype: ParamDtype = "float32", *, frees: bool = reshard) -> None:
        if empty.isdisjoint(unit.parameters()):
            policy = mixed_precision(dtype, mesh)
            split[unit] = mesh["shard"].size() > 1
            options: dict[str, Any] = {"mp_policy": policy, "reshard_after_forward": frees}
            fully_shard(unit, mesh=mesh, ignored_params=ignored, **options)

    for maps in experts:
        assert expert_mesh is not None
        if empty.isdisjoint(p for m in maps for p in m.parameters()):
            policy = mixed_precision(param_dtype, expert_mesh)
            fully_shard([*maps], mesh=expert_mesh, mp_policy=policy, reshard_after_forward=reshard)
            split |= dict.fromkeys(maps, expert_mesh["shard"].size() > 1)
    for layer in units(model):
        # The CPU sums the gradient of a table's row in the table's dtype, and bfloat16 ends at 256 tokens.
        has_table = any(isinstance(m, Embedding) for m in layer.modules())
        add(layer, "float32" if has_table else param_dtype)
    if type(model) is Decoder and model.head.weight is not model.embedding.weight:
        # The backward pass begins with the head, and needs no table.
        add(model.embedding, frees=True)
        add(model.head, param_dtype, frees=False)
    if isinstance(model.embedding, FSDPModule) and model.embedding.project_in is None:
        model.embedding.set_unshard_in_backward(False)
    fully_shard(model, mesh=mesh, ignored_params=ignored)
    split[model] = mesh["shard"].size() > 1
    sharded: dict[FSDPModule, bool] = {
        unit: is_split for unit, is_split in split.items() if isinstance(unit, FSDPModule)
    }
    for unit in sharded:
        # The loss is divided by the number of targets of the complete batch, so gradients are summed.
        unit.set_force_sum_reduction_for_comms(True)
        unit.set_gradient_divide_factor(1.0)
    _gather_in_hidden(model)
    if any(p.is_meta for p in model.parameters()):
        _take_memory(model, mesh.device_type)
    return sharded


def mixed_precision(param_dtype: ParamDtype, mesh: DeviceMesh) -> MixedPrecisionPolicy:
    """Return the policy of a unit: gradients are summed in float32, and inputs keep their dtype."""
    if param_dtype != "bfloat16" or mesh["shard"].size() == 1:
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    return MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)


def _gather_in_hidden(model: Decoder) -> None:
    """Gather parameters in calls of `hidden`, except those by `forward`, which has already gathered them.

    The inner call would free them at its end. Parameters of no other unit remain gathered until the end of the backward
    pass, or without one, until the next pass.
    """
    plain, forward, is_inside = model.hidden, model.forward, False
    calls_forward(model, "hidden")
    gathering = model.hidden

    def hidden(*args: Any, **kwargs: Any) -> Any:
        return (plain if is_inside else gathering)(*args, **kwargs)

    def marked_forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_inside
        is_inside = True
        try:
            return forward(*args, **kwargs)
        finally:
            is_inside = False

    setattr(model, "hidden", hidden)  # noqa: B010
    setattr(model, "forward", marked_forward)  # noqa: B010


def _take_memory(model: nn.Module, device: str) -> None:
    """Allocate tensors of the meta device without values. Tied parameters remain tied."""
    places: dict[Tensor, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            places.setdefault(parameter, []).append((module, name))
    model.to_empty(device=device)
    for (first, first_name), *others in places.values():
        for module, name in others:
            setattr(module, name, getattr(first, first_name))


def units(model: Decoder) -> list[nn.Module]:
    """Return the layers that can be gathered one by one: called once per pass, and with no shared parameter."""
    if model.spec.is_reversible:
        return []
    layers = Counter(model.all_layers)
    uses = Counter(p for layer in layers for p in layer.parameters())
    outside = {p for module in _outside(model, {*layers}) for p in module.parameters(False)}
    return [
        layer
        for layer, calls in layers.items()
        if calls == 1 and all(uses[p] == 1 and p not in outside for p in layer.parameters())
    ]


def _outside(model: nn.Module, layers: set[nn.Module]) -> Iterator[nn.Module]:
    """Yield a module and its descendants outside layers."""
    yield model
    for child in model.children():
        if child not in layers:
            yield from _outside(child, layers)
