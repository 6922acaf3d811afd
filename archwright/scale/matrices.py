"""Distributed work on complete matrices: each rank gathers some of them and returns shards of the results.

Source: Liu et al., 2025, arXiv 2502.16982, section 2.3, Muon with ZeRO-1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from archwright.scale.exchange import all_to_all
from archwright.scale.layout import Block


class SharedMatrices:
    """Matrices, or stacks of matrices, that are sharded across a group.

    Args:
        blocks: Local block of each matrix, by name. All ranks have the same names.
    """

    def __init__(self, blocks: Mapping[str, Block], group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self._shapes = {name: block.shape for name, block in blocks.items()}
        self._numbers = {name: number for number, name in enumerate(blocks)}
        local = {name: (block.offsets, block.sizes) for name, block in blocks.items()}
        by_rank: list[Any] = [None] * self.size
        dist.all_gather_object(by_rank, local, group)
        self._blocks = {
            name: [Block(block.shape, *places[name]) for places in by_rank]
            for name, block in blocks.items()
        }

    def mapped(
        self, names: Sequence[str], local: Sequence[Tensor], work: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        """Apply `work` to complete matrices of one shape; return the local shards of the results.

        All ranks make the same calls. Each matrix is processed by one rank.

        Args:
            local: Local shards.
            work: Function of a batch [number, *shape], independent for each matrix.
        """
        blocks, ranks = [self._blocks[name] for name in names], range(self.size)
        # Each batch starts at another rank, because a batch may have fewer matrices than the group has ranks.
        start = self._numbers[names[0]] % self.size
        assigned = [range((rank - start) % self.size, len(names), self.size) for rank in ranks]
        worker = {i: rank for rank in ranks for i in assigned[rank]}
        mine = assigned[self.rank]

        def sends(rank: int, i: int) -> bool:
            """True if a rank sends its block. Of ranks with equal blocks, only one does, if possible the worker."""
            holders = [r for r in ranks if blocks[i][r] == blocks[i][rank]]
            return rank == (worker[i] if worker[i] in holders else holders[i % len(holders)])

        received = self._exchanged(
            local[0],
            [[local[i] for i in indices if sends(self.rank, i)] for indices in assigned],
            [[blocks[i][rank].numel for i in mine if sends(rank, i)] for rank in ranks],
        )
        complete = local[0].new_empty(len(mine), *self._shapes[names[0]])
        for rank in ranks:
            for matrix, i in zip(complete, mine, strict=True):
                if sends(rank, i):
                    block = blocks[i][rank]
                    matrix[block.slices].copy_(next(received).view(block.sizes))
        results = work(complete) if mine else complete
        received = self._exchanged(
            local[0],
            [
                [matrix[blocks[i][rank].slices] for matrix, i in zip(results, mine, strict=True)]
                for rank in ranks
            ],
            [[blocks[i][self.rank].numel for i in indices] for indices in assigned],
        )
        shards = {i: next(received).view_as(local[i]) for indices in assigned for i in indices}
        return [shards[i] for i in range(len(names))]

    def _exchanged(
        self, like: Tensor, out: Sequence[Sequence[Tensor]], numels: Sequence[Sequence[int]]
    ) -> Iterator[Tensor]:
        """Send tensors to each rank; return the flat tensors of all ranks, of these numbers of elements."""
        flat = torch.cat([like.new_empty(0), *(t.flatten() for tensors in out for t in tensors)])
        sent = [sum(t.numel() for t in tensors) for tensors in out]
        received = all_to_all(flat, [sum(rank) for rank in numels], sent, self.group)
        return iter(received.split([numel for rank in numels for numel in rank]))
