"""A model cut up over processes from outside: its branches over those of a tensor group, or its experts over those of
an expert group, its layers over those of a pipeline, then all of it by torch's FSDP2; and what each process holds of
it."""

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.export
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp import register_fsdp_forward_method as calls_forward
from torch.distributed.tensor import DTensor

from archwright.model.model import Decoder, Output
from archwright.optim import Optimizers
from archwright.optim.shards import Shards, WholeMatrices
from archwright.scale.experts import ExpertShards
from archwright.scale.layout import Block
from archwright.scale.matrices import SharedMatrices
from archwright.scale.stages import StageShards
from archwright.scale.tensor import TensorShards
from archwright.spec.scale import ParamDtype

# FSDP2 looks for tensors in what a model returns, in torch 2.11 only in containers that are registered.
with contextlib.suppress(ValueError):  # it is already
    torch.export.register_dataclass(Output)
BATCHES_HELD = 4
"""Batches of whole matrices of which a process may hold its share at once."""
OTHER_PASSES = ("hidden",)
"""Methods of a model, beside `forward`, that a step calls."""


class ModelShards(Shards):
    """A model whose parameters, gradients and optimizers are cut up along their first axis.

    Every layer is a unit: its parameters are gathered before it computes, forward and backward, and its gradients are
    added up behind it, over the processes of a shard and over replicas. All that stands around layers is one more unit.
    Of branches that a tensor group shares, what a process holds is cut up so; and so are experts, over the processes
    that have the same, and the layers of a stage, over those of the stage.

    Args:
        model: whole, and the same in all processes; or on the meta device, and then what this process holds of it has
            memory without values.
        mesh: the processes, with the axes shard or replicate and shard, and where there are such groups pipeline
            before and tensor behind them.
        sequence: whether a tensor group shares the tokens between branches.
        experts: the same processes, with an axis expert behind shard, where they share experts.
        param_dtype: numbers in which weights of layers are gathered.
        num_stages: of the pipeline.
        stage: the processes that compute the same layers; None: all.
    """

    def __init__(
        self,
        model: Decoder,
        mesh: DeviceMesh,
        *,
        sequence: bool = True,
        experts: DeviceMesh | None = None,
        param_dtype: ParamDtype = "float32",
        num_stages: int = 1,
        stage: dist.ProcessGroup | None = None,
    ) -> None:
        axes = mesh.mesh_dim_names or ()
        groups = {name: mesh.get_group(name) for name in ("pipeline", "tensor") if name in axes}
        self.stages = StageShards(model, groups.get("pipeline"), num_stages)
        self.parts = TensorShards(
            model, groups.get("tensor"), sequence=sequence, stages=self.stages.runs
        )
        self.experts = ExpertShards(model, experts)
        self.stages.drop()
        if groups:
            mesh = mesh[tuple(name for name in axes if name not in groups)]
        self.model, self.mesh = model, mesh
        # Nobody changes in place what a model returns.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
        # A scalar parameter (0-d) has nothing to cut; FSDP2 refuses it.
        numbers = {p for p in model.parameters() if p.ndim == 0}
        gone = {p for name, p in model.named_parameters() if not self.stages.holds(name)}
        for maps in self.experts.units:
            if gone.isdisjoint(p for m in maps for p in m.parameters()):
                fully_shard(
                    [*maps],
                    mesh=self.experts.mesh,
                    mp_policy=_policy(param_dtype, self.experts.mesh),
                )
        for unit in units(model):
            if gone.isdisjoint(unit.parameters()):
                policy = _policy(param_dtype, mesh)
                fully_shard(unit, mesh=mesh, mp_policy=policy, ignored_params=numbers | gone)
        fully_shard(model, mesh=mesh, ignored_params=numbers | gone)
        self._units = [unit for unit in model.modules() if isinstance(unit, FSDPModule)]
        for unit in self._units:
            # The loss is divided by all that is counted in the batch: its gradients add up.
            unit.set_force_sum_reduction_for_comms(True)
            unit.set_gradient_divide_factor(1.0)
        for name in OTHER_PASSES:
            _gathers_as_forward(model, name)
        if any(p.is_meta for p in model.parameters()):
            _take_memory(model, mesh.device_type)
        # Memory comes with other parameters in place of those before.
        self._numbers = [p for p in model.parameters() if p.ndim == 0]
        self.tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        self._held: dict[int, str] = {}
        """Names of the tensors that optimizers move, by what they are."""
        self._moved: list[nn.Parameter] = []
        self._stage = stage
        self._matrices: SharedMatrices | None = None

    def take(self, optimizers: Optimizers) -> None:
        """Let optimizers of the model move the tensors that this process holds, as if these were its parameters."""
        held: dict[int, nn.Parameter] = {}
        self._held.clear()
        for name, p in self.model.named_parameters():
            own = nn.Parameter(_local(p), p.requires_grad) if isinstance(p, DTensor) else p
            held[id(p)], self._held[id(own)] = own, name
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                group["params"] = [held[id(p)] for p in group["params"]]
        whole = [o for o in optimizers.values() if isinstance(o, WholeMatrices)]
        for optimizer in whole:
            optimizer.shards = self
        if whole:
            self._share_matrices(name for o in whole for group in self.names(o) for name in group)
        self._moved = [
            p for o in optimizers.values() for group in o.param_groups for p in group["params"]
        ]

    def _share_matrices(self, names: Iterable[str]) -> None:
        """Let processes share the work on the matrices that a stage holds."""
        group = self._stage or dist.group.WORLD
        assert group is not None, "processes are there"
        blocks = {name: self.block(name) for name in names if self.stages.holds(name)}
        self._matrices = SharedMatrices(blocks, group, torch.device(self.mesh.device_type))
        # Processes that hold copies hold all of each batch, so that memory is for few batches.
        shares = self.mesh.get_group("shard").size() * self.parts.size
        self.num_batches = min(group.size(), BATCHES_HELD * shares)

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
        self.stages.bring({self._held[id(p)]: p for p in self._moved})

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
        counted = [p for p in self._moved if p.ndim and self.stages.counts(self._held[id(p)])]
        if self.parts.rank == 0 and self.stages.group is None:
            squares = own.double().square() - everywhere
        elif self.parts.rank == 0:
            squares = _squares(counted).to(own.device)
        else:  # what is not cut is counted by the first process of the group
            cut = (p for p in counted if self._held[id(p)] in self.parts.axes)
            squares = _squares(cut).to(own.device)
        for group in (self.mesh.get_group("shard"), self.parts.group, self.stages.group):
            if group is not None:
                dist.all_reduce(squares, group=group)
        return (squares + everywhere).sqrt().to(own.dtype)

    def shape(self, parameter: Tensor) -> torch.Size:
        name = self._held[id(parameter)]
        return self.shape_of(name) if self.stages.holds(name) else parameter.shape

    def shape_of(self, name: str) -> torch.Size:
        """Return the shape of a whole parameter or buffer."""
        own = self.experts.shape(name, self.parts.shape(name, self.tensors[name].shape))
        return self.stages.shape(name, own)

    def mapped(
        self,
        parameters: Sequence[Tensor],
        own: Sequence[Tensor],
        work: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
    ) -> list[Tensor]:
        assert self._matrices is not None, "an optimizer of matrices has been taken"
        names = [self._held[id(p)] for p in parameters]
        done = [tensor.to(dtype) for tensor in own]
        shared = [i for i, name in enumerate(names) if not self._has_whole_matrices(name)]
        for i in {*range(len(done))} - {*shared}:
            done[i] = work(done[i][None])[0] if done[i].numel() else done[i]
        if shared:
            found = self._matrices.mapped(
                [names[i] for i in shared], [done[i] for i in shared], work
            )
            for i, tensor in zip(shared, found, strict=True):
                done[i] = tensor
        return done

    def _has_whole_matrices(self, name: str) -> bool:
        """Tell whether processes hold stacks of a parameter's matrices, such as one for each expert, or nothing."""
        if not self.stages.holds(name):
            return True
        return len(self.shape_of(name)) > 2 and self.parts.axes.get(name, 0) == 0

    def gathered(self, name: str, own: Tensor) -> Tensor:
        """Return a whole tensor, as of a parameter or buffer, of which this process has `own`; all processes ask
        alike."""
        return self.stages.whole(name, self._of_stage(name, own))

    def _of_stage(self, name: str, own: Tensor) -> Tensor:
        """Return all of a tensor where the stage of this process holds it."""
        if not self.stages.holds(name):
            return own
        like = self.tensors[name]
        if isinstance(like, DTensor):
            own = _gathered(own, like)
        return self.experts.whole(name, self.parts.whole(name, own))

    def _own(self, name: str, whole: Tensor) -> Tensor:
        if not self.stages.holds(name):
            return whole[:0]
        own, held = self.parts.own(name, self.experts.own(name, whole)), self.tensors[name]
        return _part(own, held.device_mesh) if isinstance(held, DTensor) else own

    def block(self, name: str) -> Block:
        """Return what this process holds of a parameter or buffer."""
        shape = (*self.shape_of(name),)
        if not self.stages.holds(name):
            return Block(shape, (0,) * len(shape), (0, *shape[1:]))
        offsets, sizes = [0] * len(shape), [*shape]
        copies, copy = self.stages.copies(name)
        axis = self.parts.axes.get(name)
        if axis is None:
            copies, copy = copies * self.parts.size, copy * self.parts.size + self.parts.rank
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

    def name_of(self, parameter: Tensor) -> str:
        """Return the name of a parameter that an optimizer moves."""
        return self._held[id(parameter)]

    def held(self) -> dict[str, Tensor]:
        """Return the tensors that optimizers move by name, in the model's order."""
        moved = {self._held[id(p)]: p for p in self._moved}
        return {name: moved[name] for name in self.tensors if name in moved}

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
            yield name, self.gathered(name, own)

    def put(self, name: str, whole: Tensor) -> None:
        """Set a parameter or a buffer to a whole value that all processes have."""
        if self.stages.holds(name):
            self.put_own(name, self._own(name, whole))

    @torch.no_grad()
    def put_own(self, name: str, own: Tensor) -> None:
        """Set what this process holds of a parameter or buffer."""
        # FSDP2 keeps parameters gathered behind a forward pass without a backward pass, and the next pass would compute
        # with these values, not with new ones.
        for unit in self._units:
            unit.reshard()
        self.local(name).copy_(own)


def _policy(param_dtype: ParamDtype, mesh: DeviceMesh | None) -> MixedPrecisionPolicy:
    """Return in which numbers weights are gathered, where processes hold parts of them; gradients are added up in
    float32, and the stream stays as it is."""
    if param_dtype == "float32" or mesh is None or mesh["shard"].size() == 1:
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    return MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)


def _gathers_as_forward(model: nn.Module, name: str) -> None:
    """Let a method gather what it computes with, except where `forward` calls it, which has gathered that already: the
    method would let go of it at its end. What stands around the layers then stays to the end of the backward pass, and
    after a pass without one until the next."""
    plain, forward, is_inside = getattr(model, name), model.forward, False
    calls_forward(model, name)
    gathering = getattr(model, name)

    def method(*args: Any, **kwargs: Any) -> Any:
        return (plain if is_inside else gathering)(*args, **kwargs)

    def noted(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_inside
        is_inside = True
        try:
            return forward(*args, **kwargs)
        finally:
            is_inside = False

    setattr(model, name, method)
    setattr(model, "forward", noted)  # noqa: B010


def _take_memory(model: nn.Module, device: str) -> None:
    """Give tensors of the meta device memory without values; what modules share they go on sharing."""
    places: dict[Tensor, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            places.setdefault(parameter, []).append((module, name))
    model.to_empty(device=device)
    for (first, first_name), *others in places.values():
        for module, name in others:
            setattr(module, name, getattr(first, first_name))


def units(model: Decoder) -> list[nn.Module]:
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
