"""A model cut up over processes from outside: its branches over those of a tensor group, or its experts over those of
an expert group, then all of it by torch's FSDP2; and what each process holds of it."""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
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
from archwright.scale.experts import ExpertShards
from archwright.scale.layout import Block
from archwright.scale.tensor import TensorShards

OTHER_PASSES = ("hidden",)
"""Methods of a model, beside `forward`, that a step calls."""


class ModelShards(Shards):
    """A model whose parameters, gradients and optimizers are cut up along their first axis.

    Every layer is a unit: its parameters are gathered before it computes, forward and backward, and its gradients are
    added up behind it, over the processes of a shard and over copies. All that stands around layers is one more unit.
    Of branches that a tensor group shares, what a process holds is cut up so; and so are experts, over the processes
    that have the same.

    Args:
        model: whole, and the same in all processes; or on the meta device, and then what this process holds of it has
            memory without values.
        mesh: the processes, [shard], [replicate, shard] or [replicate, shard, tensor].
        sequence: whether a tensor group shares the tokens between branches.
        experts: the same processes, [shard, expert] or [replicate, shard, expert], where they share experts.
    """

    def __init__(
        self,
        model: LanguageModel,
        mesh: DeviceMesh,
        *,
        sequence: bool = True,
        experts: DeviceMesh | None = None,
    ) -> None:
        tensor = "tensor" in (mesh.mesh_dim_names or ())
        group = mesh.get_group("tensor") if tensor else None
        self.parts = TensorShards(model, group, sequence=sequence)
        self.experts = ExpertShards(model, experts)
        self.model, self.mesh = model, mesh["replicate", "shard"] if tensor else mesh
        mesh = self.mesh
        # Nobody changes in place what a model returns.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
        # A number has nothing to cut; FSDP2 refuses it.
        numbers = {p for p in model.parameters() if p.ndim == 0}
        for maps in self.experts.units:
            fully_shard([*maps], mesh=self.experts.mesh)
        for unit in (*units(model), model):
            fully_shard(unit, mesh=mesh, ignored_params=numbers)
        for unit in model.modules():
            if isinstance(unit, FSDPModule):
                # The loss is divided by all that is counted in the batch: its gradients add up.
                unit.set_force_sum_reduction_for_comms(True)
                unit.set_gradient_divide_factor(1.0)
        for name in OTHER_PASSES:
            calls_forward(model, name)
        if any(p.is_meta for p in model.parameters()):
            model.to_empty(device=mesh.device_type)
        # Memory comes with other parameters in place of those before.
        self._numbers = [p for p in model.parameters() if p.ndim == 0]
        self.tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        self._held: dict[int, str] = {}
        """Names of the tensors that optimizers move, by what they are."""
        self._moved: list[nn.Parameter] = []

    def take(self, optimizers: Optimizers) -> None:
        """Let optimizers of the model move the tensors that this process holds, as if these were its parameters."""
        held: dict[int, nn.Parameter] = {}
        for name, p in self.model.named_parameters():
            own = nn.Parameter(_local(p), p.requires_grad) if isinstance(p, DTensor) else p
            held[id(p)], self._held[id(own)] = own, name
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
            whole = self.tensors[self._held[id(own)]]
            if isinstance(whole, DTensor):
                gradient = whole.grad
                own.grad = None if gradient is None else _local(cast(DTensor, gradient))
        self._add_up([p.grad for p in self._numbers if p.grad is not None])
        self.parts.add_up(
            [
                p.grad
                for p in self._moved
                if p.grad is not None and self._held[id(p)] in self.parts.partial
            ]
        )

    def _add_up(self, gradients: list[Tensor]) -> None:
        """Replace gradients that FSDP2 leaves alone by their sums over processes with other rows."""
        if gradients:
            total = torch.stack(gradients)
            for axis in self.mesh.mesh_dim_names or ():
                dist.all_reduce(total, group=self.mesh.get_group(axis))
            for gradient, value in zip(gradients, total, strict=True):
                gradient.copy_(value)

    def drop_gradients(self) -> None:
        """Forget the gradients of the model."""
        self.model.zero_grad(set_to_none=True)

    def norm(self, own: Tensor) -> Tensor:
        """Return the norm of all gradients, of which those that this process holds have the norm `own`."""
        everywhere = _squares(self._numbers).to(own.device)  # of what all processes hold alike
        if self.parts.rank == 0:
            squares = own.double().square() - everywhere
        else:  # what is not cut is counted by the first process of the group
            cut = (p for p in self._moved if self._held[id(p)] in self.parts.axes)
            squares = _squares(cut).to(own.device)
        for group in (self.mesh.get_group("shard"), self.parts.group):
            if group is not None:
                dist.all_reduce(squares, group=group)
        return (squares + everywhere).sqrt().to(own.dtype)

    def shape(self, parameter: Tensor) -> torch.Size:
        return self.shape_of(self._held[id(parameter)])

    def shape_of(self, name: str) -> torch.Size:
        """Return the shape of a whole parameter or buffer."""
        return self.experts.shape(name, self.parts.shape(name, self.tensors[name].shape))

    def whole(self, parameter: Tensor, own: Tensor) -> Tensor:
        return self._whole(self._held[id(parameter)], own)

    def _whole(self, name: str, own: Tensor) -> Tensor:
        like = self.tensors[name]
        if isinstance(like, DTensor):
            own = _gathered(own, like)
        return self.experts.whole(name, self.parts.whole(name, own))

    def own(self, parameter: Tensor, whole: Tensor) -> Tensor:
        return self._own(self._held[id(parameter)], whole)

    def _own(self, name: str, whole: Tensor) -> Tensor:
        own, held = self.parts.own(name, self.experts.own(name, whole)), self.tensors[name]
        return _part(own, held.device_mesh) if isinstance(held, DTensor) else own

    def block(self, name: str) -> Block:
        """Return what this process holds of a parameter or buffer."""
        shape = (*self.shape_of(name),)
        offsets, sizes, copies, copy = [0] * len(shape), [*shape], 1, 0
        axis = self.parts.axes.get(name)
        if axis is None:
            copies, copy = self.parts.size, self.parts.rank
        else:
            sizes[axis] //= self.parts.size
            offsets[axis] = sizes[axis] * self.parts.rank
        if self.experts.group is not None and name in self.experts.names:
            sizes[0] //= self.experts.group.size()
            offsets[0] = sizes[0] * self.experts.group.rank()
        held = self.tensors[name]
        mesh = held.device_mesh if isinstance(held, DTensor) else self.mesh
        for over in mesh.mesh_dim_names or ():
            number, size = mesh.get_local_rank(over), mesh[over].size()
            if over == "shard" and isinstance(held, DTensor):
                most = -(-sizes[0] // size)  # as `_part` cuts it
                start = min(number * most, sizes[0])
                offsets[0], sizes[0] = offsets[0] + start, min(most, sizes[0] - start)
            else:
                copies, copy = copies * size, copy * size + number
        return Block(shape, tuple(offsets), tuple(sizes), copies, copy)

    def block_of(self, parameter: Tensor) -> Block:
        """Return what this process holds of a parameter that an optimizer moves."""
        return self.block(self._held[id(parameter)])

    def names(self, optimizer: torch.optim.Optimizer) -> list[list[str]]:
        """Return the names of each group's parameters."""
        return [[self._held[id(p)] for p in group["params"]] for group in optimizer.param_groups]

    def local(self, name: str) -> Tensor:
        """Return what this process holds of a parameter or buffer, in the same memory."""
        tensor = self.tensors[name]
        return _local(tensor) if isinstance(tensor, DTensor) else tensor.detach()

    def whole_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters and buffers by name, each gathered when it is asked for; all processes ask alike."""
        for name, tensor in self.tensors.items():
            own = _local(tensor) if isinstance(tensor, DTensor) else tensor
            yield name, self._whole(name, own)

    @torch.no_grad()
    def put(self, name: str, whole: Tensor) -> None:
        """Set a parameter or a buffer to a whole value that all processes have."""
        tensor = self.tensors[name]
        held = _local(tensor) if isinstance(tensor, DTensor) else tensor
        held.copy_(self._own(name, whole))


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


def _squares(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the sum of the squares of gradients, in float64."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    return torch.stack([g.double().square().sum() for g in gradients]).sum()


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
