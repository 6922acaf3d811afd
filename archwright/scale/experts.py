"""Expert parallel: the experts of a mixture shared by processes, from outside; rows are sent to those that have theirs.

Each process has some of the experts of every mixture, whole, and reads rows of its own. What it would compute with all
experts, sorted by these, is sent to the processes that have them, computed there together with the rows of others, and
sent back; gradients take the same way. So a process has the gradients of its experts for the tokens of all processes of
the group, and only those that have the same experts add theirs up. All else of a model is as without it. Beside tensor
groups, whose processes have the same rows and a part of every expert each, those of the same place share experts.

Lepikhin et al., 2020, GShard, section 3.2; Rajbhandari et al., 2022, DeepSpeed-MoE, section 5.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from archwright.model.model import Decoder
from archwright.parts.linear import GroupedLinear, to_autocast_dtype
from archwright.scale.exchange import gathered, sent_rows
from archwright.scale.tensor import stacks


class ExpertShards:
    """A model whose mixtures have some of their experts in each process of a group.

    Args:
        model: whole, and the same in all processes; afterwards, what this one holds of it.
        mesh: the processes, [shard, expert] or [replicate, shard, expert], with an axis pipeline before and an axis
            tensor behind where there are such groups; None: this one alone.

    Attributes:
        mesh: those that have the same experts, over which FSDP2 cuts these up: [shard] or [replicate, shard].
        units: maps that it gathers together.
        names: the parameters of which this process has those of its experts, along the first axis.
    """

    def __init__(self, model: Decoder, mesh: DeviceMesh | None) -> None:
        self.group = self.mesh = None
        self.units: list[list[GroupedLinear]] = []
        self.names: frozenset[str] = frozenset()
        if mesh is not None:
            axes = mesh.mesh_dim_names or ()
            others = tuple(name for name in axes if name in ("replicate", "shard"))
            self.group, self.mesh = mesh.get_group("expert"), mesh[others]
            self._cut(model, self.group)

    def _cut(self, model: Decoder, group: dist.ProcessGroup) -> None:
        cut: set[Tensor] = set()
        for module in shared_experts(model):
            self.units.append(maps := _maps(module))
            cut.update(p for m in maps for p in m.parameters())
            _connect(module, group)
        for p in cut:
            p.data = p.data.chunk(group.size())[group.rank()].clone()
        self.names = frozenset(name for name, p in model.named_parameters() if p in cut)

    def shape(self, name: str, own: torch.Size) -> torch.Size:
        """Return the shape of a parameter or buffer of all experts, of which a process has `own`."""
        if self.group is None or name not in self.names:
            return own
        return torch.Size([own[0] * self.group.size(), *own[1:]])

    def whole(self, name: str, own: Tensor) -> Tensor:
        """Return a tensor of all experts, of which this process has `own`; all processes ask alike."""
        if self.group is None or name not in self.names:
            return own
        return gathered(own, 0, self.group)

    def own(self, name: str, whole: Tensor) -> Tensor:
        """Return of a tensor of all experts what this process holds."""
        if self.group is None or name not in self.names:
            return whole
        return whole.chunk(self.group.size())[self.group.rank()]


def shared_experts(model: Decoder) -> list[nn.Module]:
    """Return what of a model computes rows that are sorted by experts, of which processes may have some each."""
    layers = dict.fromkeys(model.all_layers)
    branches = [layer.branch(name) for layer in layers for name in layer.branches]
    return [module for b in branches if (module := b.expert_parallel) is not None]


def refusals(model: Decoder, expert: int) -> Iterator[str]:
    """Yield a line for each mixture of a model whose experts so many processes cannot share out."""
    shared, lines = shared_experts(model), dict[str, None]()
    if not shared:
        yield f"scale.expert: found {expert}; expected 1, as no branch of this model has experts to share out"
    for stack, prefix in stacks(model):
        kinds = stack.spec.layers.names(stack.spec.num_layers)
        for kind, layer in zip(kinds, stack.stack, strict=True):
            path = prefix if kind == "default" else f"{prefix}.layer_kinds.{kind}"
            for name in layer.branches:
                module = layer.branch(name).expert_parallel
                if module is not None and (number := len(_maps(module)[0].weight)) % expert:
                    lines[
                        f"{path}.{name}.num_experts: found {number}; expected a multiple of scale.expert = {expert}"
                    ] = None
    yield from lines


def _maps(experts: nn.Module) -> list[GroupedLinear]:
    return [m for m in experts.modules() if isinstance(m, GroupedLinear)]


def _connect(experts: nn.Module, group: dist.ProcessGroup) -> None:
    """Let experts compute rows of all processes of a group, and each process get back its own."""
    compute = experts.forward

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(x: Tensor, which: Tensor, ends: Tensor) -> Tensor:
        x, size = to_autocast_dtype(x), group.size()
        counts = ends.diff(prepend=ends.new_zeros(1)).view(size, -1)  # [processes, experts of each]
        found = torch.empty_like(counts)  # as many rows of each process for each expert of this one
        dist.all_to_all_single(found, counts, group=group)
        sent, received = torch.stack([counts.sum(1), found.sum(1)]).tolist()
        rows = sent_rows(x, received, sent, group)
        number = found.shape[1]
        of_all = torch.arange(number, device=x.device).repeat(size)
        # [rows received], the expert of each, those of a process behind those of another
        which = of_all.repeat_interleave(found.flatten().long(), output_size=len(rows))
        ends = found.sum(0, dtype=ends.dtype).cumsum(0, dtype=ends.dtype)
        which, order = which.sort(stable=True)
        rows = rows[order]
        if not len(rows):  # a row that no one asked for: products of none have no gradient
            rows, which, ends = F.pad(rows, (0, 0, 0, 1)), which.new_zeros(1), ends + 1
        y: Tensor = compute(rows, which, ends)
        return sent_rows(y[order.argsort()], sent, received, group)

    setattr(experts, "forward", forward)  # noqa: B010
