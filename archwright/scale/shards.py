"""A model cut up over processes by torch's FSDP2, from outside; and what each process holds of it."""

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp import register_fsdp_forward_method as calls_forward
from torch.distributed.tensor import DTensor

from archwright.model.language_model import LanguageModel
from archwright.optim import Optimizers
from archwright.optim.shards import Shards, WholeMatrices

OTHER_PASSES = ("hidden",)
"""Methods of a model, beside `forward`, that a step calls."""


class ModelShards(Shards):
    """A model whose parameters, gradients and optimizers are cut up along their first axis.

    Every layer is a unit: its parameters are gathered before it computes, forward and backward, and its gradients are
    added up behind it, over the processes of a shard and over copies. All that stands around layers is one more unit.

    Args:
        model: whole, and the same in all processes.
        mesh: the processes, [shard] or [replicate, shard].
    """

    def __init__(self, model: LanguageModel, mesh: DeviceMesh) -> None:
        self.model, self.mesh = model, mesh
        # Nobody changes in place what a model returns.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
        # A number has nothing to cut; FSDP2 refuses it.
        self._numbers = [p for p in model.parameters() if p.ndim == 0]
        for unit in (*units(model), model):
            fully_shard(unit, mesh=mesh, ignored_params={*self._numbers})
        for unit in model.modules():
            if isinstance(unit, FSDPModule):
                # The loss is divided by all that is counted in the batch: its gradients add up.
                unit.set_force_sum_reduction_for_comms(True)
                unit.set_gradient_divide_factor(1.0)
        for name in OTHER_PASSES:
            calls_forward(model, name)
        self.tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        self._of: dict[int, DTensor] = {}
        self._moved: list[nn.Parameter] = []

    def take(self, optimizers: Optimizers) -> None:
        """Let optimizers of the model move the tensors that this process holds, as if these were its parameters."""
        held = {id(p): p for p in self._numbers}
        for p in self.model.parameters():
            if isinstance(p, DTensor):
                own = nn.Parameter(_local(p), p.requires_grad)
                held[id(p)], self._of[id(own)] = own, p
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                group["params"] = [held[id(p)] for p in group["params"]]
            if isinstance(optimizer, WholeMatrices):
                optimizer.shards = self
        self._moved = [
            p for o in optimizers.values() for group in o.param_groups for p in group["params"]
        ]

    def add_up_gradients(self, now: bool) -> None:
        """Say whether gradients are added up over processes in the next backward pass, or kept for a later one."""
        cast(FSDPModule, self.model).set_requires_gradient_sync(now)

    def bring_gradients(self) -> None:
        """Give the tensors that optimizers move their gradients."""
        for own in self._moved:
            whole = self._of.get(id(own))
            if whole is not None:
                gradient = whole.grad
                own.grad = None if gradient is None else _local(cast(DTensor, gradient))
        if numbers := [p.grad for p in self._numbers if p.grad is not None]:
            total = torch.stack(numbers)
            dist.all_reduce(total)
            for gradient, value in zip(numbers, total, strict=True):
                gradient.copy_(value)

    def drop_gradients(self) -> None:
        """Forget the gradients of the model."""
        self.model.zero_grad(set_to_none=True)

    def norm(self, own: Tensor) -> Tensor:
        """Return the norm of all gradients, of which those that this process holds have the norm `own`."""
        everywhere = own.new_zeros((), dtype=torch.float64)  # of what all processes hold alike
        for p in self._numbers:
            if p.grad is not None:
                everywhere += p.grad.double().square()
        squares = own.double().square() - everywhere
        dist.all_reduce(squares, group=self.mesh.get_group("shard"))
        return (squares + everywhere).sqrt().to(own.dtype)

    def shape(self, parameter: Tensor) -> torch.Size:
        whole = self._of.get(id(parameter))
        return parameter.shape if whole is None else whole.shape

    def whole(self, parameter: Tensor, own: Tensor) -> Tensor:
        whole = self._of.get(id(parameter))
        return own if whole is None else _gathered(own, whole)

    def own(self, parameter: Tensor, whole: Tensor) -> Tensor:
        if id(parameter) not in self._of:
            return whole
        return _part(whole, self.mesh)

    def whole_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters and buffers by name, each gathered when it is asked for; all processes ask alike."""
        for name, tensor in self.tensors.items():
            yield name, _gathered(_local(tensor), tensor) if isinstance(tensor, DTensor) else tensor

    @torch.no_grad()
    def put(self, name: str, whole: Tensor) -> None:
        """Set a parameter or a buffer to a whole value that all processes have."""
        tensor = self.tensors[name]
        if isinstance(tensor, DTensor):
            _local(tensor).copy_(_part(whole, self.mesh))
        else:
            tensor.copy_(whole)


def units(model: LanguageModel) -> list[nn.Module]:
    """Return the layers of a model that can be gathered one by one: those that are gone through once, by a call, and
    whose parameters nothing else has."""
    if model.spec.is_reversible:
        return []
    layers = Counter(model.all_layers)
    inside = Counter(id(p) for layer in layers for p in layer.parameters())
    around = {id(p) for module in _around(model, {*layers}) for p in module.parameters(False)}
    return [
        layer
        for layer, times in layers.items()
        if times == 1
        and all(inside[id(p)] == 1 and id(p) not in around for p in layer.parameters())
    ]


def _around(model: nn.Module, layers: set[nn.Module]) -> Iterator[nn.Module]:
    yield model
    for child in model.children():
        if child not in layers:
            yield from _around(child, layers)


@torch.no_grad()
def _local(cut: DTensor) -> Tensor:
    """Return what this process holds, in the same memory."""
    return cut.to_local()


def _gathered(own: Tensor, like: DTensor) -> Tensor:
    """Return the whole tensor of which this process has its own part, cut up as `like`."""
    cut = DTensor.from_local(
        own.detach(),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
    return cut.full_tensor()


def _part(whole: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return this process's part of a whole tensor, as FSDP2 cuts it: the last ones may have less, or nothing."""
    parts, rank = whole.chunk(mesh["shard"].size()), mesh.get_local_rank("shard")
    return parts[rank] if rank < len(parts) else whole[:0]
