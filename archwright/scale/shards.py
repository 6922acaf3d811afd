"""The local shards of a model that tensor, expert, pipeline parallelism and FSDP2 split."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from archwright.model.model import Decoder
from archwright.optim import Optimizers
from archwright.optim.shards import Shards, WholeMatrices
from archwright.parts.linear import GroupedLinear
from archwright.scale import fsdp
from archwright.scale.exchange import add_up, gathered
from archwright.scale.experts import split_experts
from archwright.scale.layout import Block
from archwright.scale.matrices import SharedMatrices
from archwright.scale.stages import StageShards
from archwright.scale.tensor import split_branches
from archwright.spec.scale import ParamDtype

BATCHES_HELD = 4
"""Maximum number of batches of complete matrices with a share on each rank at a time."""
Look = Callable[[str, Tensor], None]
"""Function of the name and local shard of a gradient."""


class _Split(NamedTuple):
    """Equal chunks of a tensor along an axis, one per rank of a group."""

    axis: int
    group: dist.ProcessGroup


class ModelShards(Shards):
    """A model with sharded parameters, gradients and optimizer states.

    Order of the splits: pipeline stages, tensor parallelism, experts, then FSDP2 along the first axis. Optimizers
    update the local shards as if these were their parameters.

    Args:
        model: Complete model, with equal values on all ranks; or on the meta device, and its shards then get memory
            without values.
        mesh: All ranks, with the axes [pipeline], [replicate], shard, [tensor].
        sequence: Whether tensor-parallel ranks split the tokens between branches.
        experts: The same ranks, with an axis expert after shard, if ranks split experts.
        param_dtype: Dtype of all-gathered weights of layers and head.
        reshard: Whether gathered weights of layers are freed between the passes.
        num_stages: Number of pipeline stages.
        stage: Ranks of the same pipeline stage; None: all.

    Attributes:
        tensors: Parameters and buffers by name.
    """

    def __init__(
        self,
        model: Decoder,
        mesh: DeviceMesh,
        *,
        sequence: bool = True,
        experts: DeviceMesh | None = None,
        param_dtype: ParamDtype = "float32",
        reshard: bool = True,
        num_stages: int = 1,
        stage: dist.ProcessGroup | None = None,
    ) -> None:
        self._shapes = {name: tensor.shape for name, tensor in _tensors(model).items()}
        self._splits = defaultdict[str, list[_Split]](list)
        self._partial: frozenset[str] = frozenset()
        """Complete parameters with a partial gradient on each rank of the tensor group."""
        axes = mesh.mesh_dim_names or ()
        groups = {name: mesh.get_group(name) for name in ("pipeline", "tensor") if name in axes}
        self.stages = StageShards(model, groups.get("pipeline"), num_stages)
        self._tensor = groups.get("tensor")
        if self._tensor is not None:
            split, self._partial = split_branches(
                model, self._tensor, sequence=sequence, stages=self.stages.runs
            )
            for name, axis in split.items():
                self._splits[name].append(_Split(axis, self._tensor))
        mixtures = [] if experts is None else self._split_experts(model, experts)
        if experts is not None:
            kept = (n for n in experts.mesh_dim_names or () if n in ("replicate", "shard"))
            experts = experts[tuple(kept)]
        self.stages.drop()
        if groups:
            mesh = mesh[tuple(name for name in axes if name not in groups)]
        self.model, self.mesh, self._stage, self._reshard = model, mesh, stage, reshard
        self._units = fsdp.shard(
            model,
            mesh,
            experts=mixtures,
            expert_mesh=experts,
            empty={p for name, p in model.named_parameters() if not self.stages.holds(name)},
            param_dtype=param_dtype,
            reshard=reshard,
        )
        self._scalars = [p for p in model.parameters() if p.ndim == 0]
        self.tensors = _tensors(model)
        self._names: dict[Tensor, str] = {}
        """Names of the tensors that optimizers update."""
        self._updated: list[nn.Parameter] = []
        self._looks: list[Look] = []
        self._matrices: SharedMatrices | None = None

    def _split_experts(self, model: Decoder, mesh: DeviceMesh) -> list[list[GroupedLinear]]:
        group = mesh.get_group("expert")
        mixtures = split_experts(model, group)
        local = {p for maps in mixtures for m in maps for p in m.parameters()}
        for name, p in model.named_parameters():
            if p in local:
                self._splits[name].append(_Split(0, group))
        return mixtures

    def take(self, optimizers: Optimizers) -> None:
        """Replace the optimizers' parameters by their local shards."""
        shards: dict[Tensor, nn.Parameter] = {}
        self._names.clear()
        for name, p in self.model.named_parameters():
            shards[p] = nn.Parameter(_local(p), p.requires_grad) if isinstance(p, DTensor) else p
            self._names[shards[p]] = name
        self._updated = []
        for optimizer in optimizers.values():
            for param_group in optimizer.param_groups:
                param_group["params"] = [shards[p] for p in param_group["params"]]
                self._updated += param_group["params"]
        whole = [o for o in optimizers.values() if isinstance(o, WholeMatrices)]
        for optimizer in whole:
            optimizer.shards = self
        if whole:
            group = self._stage or dist.group.WORLD
            assert group is not None, "ranks are connected"
            names = (name for o in whole for names in self.names(o) for name in names)
            blocks = {name: self.block(name) for name in names if self.stages.holds(name)}
            self._matrices = SharedMatrices(blocks, group)
            # Ranks with copies have a share of the same batches, so the memory allows fewer batches.
            shares = self.mesh.get_group("shard").size() * self._tensor_size
            self.num_batches = min(group.size(), BATCHES_HELD * shares)

    @property
    def _tensor_size(self) -> int:
        return 1 if self._tensor is None else self._tensor.size()

    @property
    def _tensor_rank(self) -> int:
        return 0 if self._tensor is None else self._tensor.rank()

    def _tensor_axis(self, name: str) -> int | None:
        """Return the axis of tensor parallelism; None for replicated tensors."""
        return next((s.axis for s in self._splits[name] if s.group is self._tensor), None)

    def add_up_gradients(self, now: bool) -> None:
        """Set whether the next backward pass is the last of a step.

        Each pass reduce-scatters gradients, so that no rank keeps complete ones. Only the last one all-reduces them
        over replicas. A rank with complete parameters accumulates complete gradients instead.
        """
        model = cast(FSDPModule, self.model)
        model.set_is_last_backward(now)
        # Weights that stay between the passes stay for the next microbatch, too.
        model.set_reshard_after_backward(now or self._reshard)
        for unit, is_split in self._units.items():
            unit.set_requires_gradient_sync(now or is_split, recurse=False)
            # The last backward pass of a step is that of one stage of several.
            unit.set_requires_all_reduce(now or len(self.stages.own) > 1, recurse=False)

    def bring_gradients(self) -> None:
        """Set the gradients of the local shards, summed over ranks."""
        for shard in self._updated:
            parameter = self.tensors[self._names[shard]]
            if isinstance(parameter, DTensor):
                gradient = parameter.grad
                shard.grad = None if gradient is None else _local(cast(DTensor, gradient))
        scalars = [p.grad for p in self._scalars if p.grad is not None]
        for axis in self.mesh.mesh_dim_names or ():
            add_up(scalars, self.mesh.get_group(axis))
        if self._tensor is not None:
            partial_sums = [
                p.grad
                for p in self._updated
                if p.grad is not None and self._names[p] in self._partial
            ]
            add_up(partial_sums, self._tensor)
        self.stages.bring({self._names[p]: p for p in self._updated})
        for look in self._looks:
            for name, p in self.named().items():
                if p.grad is not None:
                    look(name, p.grad)

    def drop_gradients(self) -> None:
        """Delete the gradients of the model."""
        self.model.zero_grad(set_to_none=True)

    def norm(self, local: Tensor) -> Tensor:
        """Return the norm of all gradients; `local` is the norm of the local shards."""
        everywhere = _squares(self._scalars).to(local.device)  # equal on all ranks
        counted = [p for p in self._updated if p.ndim and self.stages.counts(self._names[p])]
        if self._tensor_rank == 0 and self.stages.group is None:
            squares = local.double().square() - everywhere
        elif self._tensor_rank == 0:
            squares = _squares(counted).to(local.device)
        else:  # rank 0 of the tensor group counts replicated parameters
            split = (p for p in counted if self._tensor_axis(self._names[p]) is not None)
            squares = _squares(split).to(local.device)
        for group in (self.mesh.get_group("shard"), self._tensor, self.stages.group):
            if group is not None:
                dist.all_reduce(squares, group=group)
        return (squares + everywhere).sqrt().to(local.dtype)

    def shape(self, parameter: Tensor) -> torch.Size:
        name = self._names[parameter]
        return self._shapes[name] if self.stages.holds(name) else parameter.shape

    def mapped(
        self,
        parameters: Sequence[Tensor],
        own: Sequence[Tensor],
        work: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
    ) -> list[Tensor]:
        assert self._matrices is not None, "an optimizer of matrices has been taken"
        names = [self._names[p] for p in parameters]
        results = [tensor.to(dtype) for tensor in own]
        shared = [i for i, name in enumerate(names) if not self._has_whole_matrices(name)]
        for i in {*range(len(results))} - {*shared}:
            results[i] = work(results[i][None])[0] if results[i].numel() else results[i]
        if shared:
            shards = self._matrices.mapped(
                [names[i] for i in shared], [results[i] for i in shared], work
            )
            for i, tensor in zip(shared, shards, strict=True):
                results[i] = tensor
        return results

    def _has_whole_matrices(self, name: str) -> bool:
        """True if the local shard is empty or a stack of complete matrices, such as one per expert."""
        if not self.stages.holds(name):
            return True
        return len(self._shapes[name]) > 2 and self._tensor_axis(name) in (0, None)

    def gathered(self, name: str, local: Tensor) -> Tensor:
        """Gather a tensor that is sharded as a parameter or buffer. All ranks make the same calls."""
        if self.stages.holds(name):
            like = self.tensors[name]
            if isinstance(like, DTensor):
                local = DTensor.from_local(
                    local.detach(),
                    like.device_mesh,
                    like.placements,
                    run_check=False,
                    shape=like.shape,
                    stride=like.stride(),
                ).full_tensor()
            for axis, group in self._splits[name]:
                local = gathered(local, axis, group)
        return self.stages.whole(name, local, self._shapes[name])

    def block(self, name: str) -> Block:
        """Return the local block of a parameter or buffer."""
        shape = (*self._shapes[name],)
        if not self.stages.holds(name):
            return Block(shape, (0,) * len(shape), (0, *shape[1:]))
        offsets, sizes = [0] * len(shape), [*shape]
        copies, copy = self.stages.copies(name)
        if self._tensor_axis(name) is None:
            copies, copy = copies * self._tensor_size, copy * self._tensor_size + self._tensor_rank
        for axis, group in self._splits[name]:
            sizes[axis] //= group.size()
            offsets[axis] = sizes[axis] * group.rank()
        tensor = self.tensors[name]
        mesh = tensor.device_mesh if isinstance(tensor, DTensor) else self.mesh
        for over in mesh.mesh_dim_names or ():
            rank, size = mesh.get_local_rank(over), mesh[over].size()
            if over == "shard" and isinstance(tensor, DTensor):
                most = -(-sizes[0] // size)  # FSDP2's chunks: the last ones may be smaller or empty
                start = min(rank * most, sizes[0])
                offsets[0], sizes[0] = offsets[0] + start, min(most, sizes[0] - start)
            else:
                copies, copy = copies * size, copy * size + rank
        return Block(shape, tuple(offsets), tuple(sizes), copies, copy)

    def block_of(self, parameter: Tensor) -> Block:
        """Return the block of a shard that an optimizer updates."""
        return self.block(self._names[parameter])

    def name_of(self, parameter: Tensor) -> str:
        """Return the name of a shard that an optimizer updates."""
        return self._names[parameter]

    def names(self, optimizer: torch.optim.Optimizer) -> list[list[str]]:
        """Return the names of each group's parameters."""
        return [[self._names[p] for p in group["params"]] for group in optimizer.param_groups]

    def local(self, name: str) -> Tensor:
        """Return the local shard of a parameter or buffer, in the same memory."""
        tensor = self.tensors[name]
        return _local(tensor) if isinstance(tensor, DTensor) else tensor.detach()

    def whole_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Gather parameters and buffers one by one. All ranks iterate together."""
        for name in self.tensors:
            yield name, self.gathered(name, self.local(name))

    def put(self, name: str, whole: Tensor) -> None:
        """Set a parameter or buffer from a complete value, which all ranks have."""
        if self.stages.holds(name):
            self.put_own(name, whole[self.block(name).slices])

    @torch.no_grad()
    def put_own(self, name: str, local: Tensor) -> None:
        """Set the local shard of a parameter or buffer."""
        # Free gathered parameters: without a backward pass, FSDP2 would use the old values in the next pass.
        for unit in self._units:
            unit.reshard()
        self.local(name).copy_(local)

    # The protocol of probes (`archwright.inspection.probes.Parameters`).

    def named(self) -> Mapping[str, Tensor]:
        """Return the shards that optimizers update by name, in the model's order."""
        shards = {self._names[p]: p for p in self._updated}
        return {name: shards[name] for name in self.tensors if name in shards}

    def numel(self, name: str) -> int:
        """Return the number of elements of a complete parameter."""
        return self._shapes[name].numel()

    def watch_gradients(self, look: Look) -> Callable[[], None]:
        """Call `look` with each gradient before clipping; return a function that ends this."""
        self._looks.append(look)
        return partial(self._looks.remove, look)

    def add_up(self, sums: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Sum values of shards over ranks, by parameter. Copies count once."""
        if not sums:  # on all ranks, such as in a step without an update
            return sums
        total = torch.stack([x.double() * (self.block(name).copy == 0) for name, x in sums.items()])
        dist.all_reduce(total)
        return dict(zip(sums, total, strict=True))


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _squares(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the sum of squared gradients in float64."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float64)
    return torch.stack([*norms]).square().sum()


@torch.no_grad()
def _local(tensor: DTensor) -> Tensor:
    """Return the local shard in the same memory."""
    return tensor.to_local()
