"""What a heap grows to while tensors come and go, as glibc lays them out where freed memory is kept.

Each tensor is aligned: `posix_memalign` takes a piece that is larger, and gives what is before and behind back. Where
something small, such as a node of the graph, settles in the hole of a freed tensor, the hole is too small for the
next tensor of the same size until the graph goes at the end of a step. So a heap grows beyond what is alive at any
time, most where the same tensors come and go many times a step.
"""

from bisect import bisect_left, insort
from random import Random

ALIGNED = 64 + 32
"""Bytes more than a tensor's that are taken, to be given back around it."""
HEADER, STEP = 16, 16
SMALL = 1024
"""Bytes below which a tensor is not followed."""
LEAST = 32
"""Bytes of a piece that is worth keeping apart."""
SETTLED = 48
"""Bytes of something small in a hole."""


class Heap:
    """A heap from which the smallest hole that is large enough is taken, and where neighbouring holes become one.

    Args:
        seed: of which holes something small settles in.
    """

    def __init__(self, seed: int = 0) -> None:
        self.most = 0
        """Bytes that it has grown to."""
        self._dice = Random(seed)
        self._top = 0
        self._holes: list[tuple[int, int]] = []
        """Sizes and starts, in order."""
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._used: dict[int, tuple[int, int, float]] = {}
        """Start and size, and what is drawn for the hole: already here, as tensors that go together go in any order."""
        self._settled: list[int] = []
        """Where something small is in a hole."""

    def allocate(self, key: int, size: int) -> None:
        """Make room for a tensor."""
        if size < SMALL:
            return
        whole = -(-size // STEP) * STEP + HEADER + ALIGNED
        place = bisect_left(self._holes, (whole, -1))
        if place < len(self._holes):
            hole, start = self._holes[place]
            self._close(hole, start)
            if hole - whole >= LEAST:
                self._open(hole - whole, start + whole)
            else:
                whole = hole
        else:
            start, self._top = self._top, self._top + whole
            self.most = max(self.most, self._top)
        self._used[key] = start, whole, self._dice.random()

    def free(self, key: int, settles: float) -> None:
        """Give a tensor's room back.

        Args:
            key: the tensor's.
            settles: how probable it is that something small settles in the hole.
        """
        if key not in self._used:
            return
        start, size, drawn = self._used.pop(key)
        if drawn < settles:
            self._settled.append(start)
            start, size = start + SETTLED, size - SETTLED
        self._release(start, size)

    def end_step(self) -> None:
        """Free all that is small."""
        for start in self._settled:
            self._release(start, SETTLED)
        self._settled.clear()

    def _release(self, start: int, size: int) -> None:
        if (before := self._ends.get(start)) is not None:
            self._close(before, start - before)
            start, size = start - before, size + before
        if (behind := self._starts.get(start + size)) is not None:
            self._close(behind, start + size)
            size += behind
        if start + size == self._top:
            self._top = start
        else:
            self._open(size, start)

    def _open(self, size: int, start: int) -> None:
        insort(self._holes, (size, start))
        self._starts[start], self._ends[start + size] = size, size

    def _close(self, size: int, start: int) -> None:
        del self._holes[bisect_left(self._holes, (size, start))]
        del self._starts[start], self._ends[start + size]
