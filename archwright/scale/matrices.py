"""Work on whole matrices of which processes hold blocks: each matrix is sent to one process, which sends to all what
comes of their blocks, so that together they do the work once.

Liu et al., 2025, arXiv 2502.16982, section 2.3, describe Muon over ZeRO-1, where processes gather what they need.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from archwright.scale.exchange import gathered, sent
from archwright.scale.layout import Block


class _Place(NamedTuple):
    """Where a block lies in its matrix, or stack of matrices."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        return prod(self.sizes)

    def of(self, whole: Tensor) -> Tensor:
        """Return the block, in the same memory."""
        slices = (slice(o, o + n) for o, n in zip(self.offsets, self.sizes, strict=True))
        return whole[tuple(slices)]


class SharedMatrices:
    """Matrices of which processes of a group hold blocks.

    Args:
        blocks: what this process holds of each matrix, by name; the others hold something of the same names.
        device: where they are.
    """

    def __init__(
        self, blocks: Mapping[str, Block], group: dist.ProcessGroup, device: torch.device
    ) -> None:
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self._shapes = {name: block.shape for name, block in blocks.items()}
        self._places = _of_all(blocks, group, device)
        self._holders = {name: _holders(places) for name, places in self._places.items()}
        self._numbers = {name: number for number, name in enumerate(blocks)}

    def mapped(
        self, names: Sequence[str], own: Sequence[Tensor], work: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        """Return what this process holds of `work` of matrices of one shape, of which it has `own`; all processes ask
        alike.

        Args:
            work: takes and gives [number, *shape], each matrix by itself.
        """
        places, everyone = [self._places[name] for name in names], range(self.size)
        # Work begins at another process for each batch, as there may be fewer matrices than processes.
        start = self._numbers[names[0]] % self.size
        dealt = [range((rank - start) % self.size, len(names), self.size) for rank in everyone]
        workers = {i: rank for rank in everyone for i in dealt[rank]}
        mine = dealt[self.rank]

        def sends(rank: int, i: int) -> bool:
            """Tell which of the processes that hold the same block sends it: the worker, if it is one of them."""
            holders = self._holders[names[i]][rank]
            return rank == (workers[i] if workers[i] in holders else holders[i % len(holders)])

        came = self._exchanged(
            own[0],
            [[own[i] for i in of if sends(self.rank, i)] for of in dealt],
            [[places[i][rank].numel for i in mine if sends(rank, i)] for rank in everyone],
        )
        whole = own[0].new_empty(len(mine), *self._shapes[names[0]])
        for rank in everyone:
            for matrix, i in zip(whole, mine, strict=True):
                if sends(rank, i):
                    place = places[i][rank]
                    place.of(matrix).copy_(next(came).view(place.sizes))
        done = work(whole) if mine else whole
        came = self._exchanged(
            own[0],
            [
                [places[i][rank].of(matrix) for matrix, i in zip(done, mine, strict=True)]
                for rank in everyone
            ],
            [[places[i][self.rank].numel for i in of] for of in dealt],
        )
        found = {i: next(came).view_as(own[i]) for of in dealt for i in of}
        return [found[i] for i in range(len(names))]

    def _exchanged(
        self, like: Tensor, out: Sequence[Sequence[Tensor]], back: Sequence[Sequence[int]]
    ) -> Iterator[Tensor]:
        """Send tensors to each process, and return those of each, of so many elements, one by one."""
        flat = torch.cat([like.new_empty(0), *(t.flatten() for some in out for t in some)])
        numbers = [sum(t.numel() for t in some) for some in out]
        came = sent(flat, [sum(some) for some in back], numbers, self.group)
        return iter(came.split([number for some in back for number in some]))


def _holders(places: Sequence[_Place]) -> list[list[int]]:
    """Return for each process which ones hold the same block."""
    found: dict[_Place, list[int]] = {}
    for rank, place in enumerate(places):
        found.setdefault(place, []).append(rank)
    return [found[place] for place in places]


def _of_all(
    blocks: Mapping[str, Block], group: dist.ProcessGroup, device: torch.device
) -> dict[str, list[_Place]]:
    """Return what each process of a group holds of each matrix."""
    width = max((len(block.shape) for block in blocks.values()), default=0)
    rows = [
        [*block.offsets, *[0] * (width - len(block.shape)), *block.sizes]
        + [0] * (width - len(block.shape))
        for block in blocks.values()
    ]
    # [names, 2 width] of each process
    own = torch.tensor(rows, dtype=torch.int64, device=device).view(1, len(rows), 2 * width)
    found = gathered(own, 0, group).tolist()
    return {
        name: [
            _Place(tuple(of[i][: len(block.shape)]), tuple(of[i][width : width + len(block.shape)]))
            for of in found
        ]
        for i, (name, block) in enumerate(blocks.items())
    }
