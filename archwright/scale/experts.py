"""Expert parallelism: ranks split the experts of each mixture, and all-to-all sends tokens to them and back.

Each rank has some complete experts of every mixture. It sorts its tokens by expert and sends each one to the rank with
the expert. Gradients take the reverse way, so a rank has the gradients of its experts for the tokens of all ranks of
the group; only ranks with equal experts sum them. With tensor parallelism, whose ranks have the same tokens and a part
of each expert, ranks with equal positions in their tensor groups split the experts.

Source: Lepikhin et al., 2020, GShard, section 3.2; Rajbhandari et al., 2022, DeepSpeed-MoE, section 5.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from archwright.model.model import Decoder
from archwright.parts.linear import GroupedLinear, to_autocast_dtype
from archwright.scale.cuts import branch_paths, distinct_layers, own_part
from archwright.scale.exchange import sent_rows


def split_experts(model: Decoder, group: dist.ProcessGroup) -> list[list[GroupedLinear]]:
    """Replace the experts of each mixture by the local ones, and add collectives; return the maps of each mixture."""
    layers = distinct_layers(model)
    branches = [layer.branch(name) for layer in layers for name in layer.branches]
    mixtures = [module for b in branches if (module := b.expert_parallel) is not None]
    for mixture in mixtures:
        _connect(mixture, group)
    units = [_maps(mixture) for mixture in mixtures]
    for p in {p for maps in units for m in maps for p in m.parameters()}:
        p.data = own_part(p.data, 0, group.size(), group.rank())
    return units


def refusals(model: Decoder, expert: int) -> Iterator[str]:
    """Yield a line for each number of experts that does not divide by the number of ranks."""
    mixtures = [
        (path, module)
        for path, branch, _ in branch_paths(model)
        if (module := branch.expert_parallel) is not None
    ]
    if not mixtures:
        yield f"scale.expert: found {expert}; expected 1, as no branch of this model has experts to share out"
    yield from dict.fromkeys(
        f"{path}.num_experts: found {number}; expected a multiple of scale.expert = {expert}"
        for path, module in mixtures
        if (number := len(_maps(module)[0].weight)) % expert
    )


def _maps(experts: nn.Module) -> list[GroupedLinear]:
    return [m for m in experts.modules() if isinstance(m, GroupedLinear)]


def _connect(experts: nn.Module, group: dist.ProcessGroup) -> None:
    """Send rows to the ranks with their experts, and the results back."""
    compute = experts.forward

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(x: Tensor, which: Tensor, ends: Tensor) -> Tensor:
        x, size = to_autocast_dtype(x), group.size()
        counts = ends.diff(prepend=ends.new_zeros(1)).view(size, -1)  # [ranks, experts of each]
        incoming = torch.empty_like(counts)  # [ranks, local experts]
        dist.all_to_all_single(incoming, counts, group=group)
        sent, received = torch.stack([counts.sum(1), incoming.sum(1)]).tolist()
        rows = sent_rows(x, received, sent, group)
        local_experts = torch.arange(incoming.shape[1], device=x.device).repeat(size)
        # [rows received]: expert of each row, sorted by sending rank
        which = local_experts.repeat_interleave(incoming.flatten().long(), output_size=len(rows))
        ends = incoming.sum(0, dtype=ends.dtype).cumsum(0, dtype=ends.dtype)
        which, order = which.sort(stable=True)
        rows = rows[order]
        if not len(rows):  # add a row of zeros, because products of no rows have no gradient
            rows, which, ends = F.pad(rows, (0, 0, 0, 1)), which.new_zeros(1), ends + 1
        y: Tensor = compute(rows, which, ends)
        return sent_rows(y[order.argsort()], sent, received, group)

    setattr(experts, "forward", forward)  # noqa: B010
