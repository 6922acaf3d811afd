"""Random numbers that can be drawn again: what dropout hid in a pass is hidden when a layer is computed once more."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Replay:
    """The random numbers of a pass, stretch by stretch; each stretch has a seed of its own, which follows from one that
    is drawn at the beginning.

    Args:
        device: where numbers are drawn.
    """

    def __init__(self, device: torch.device) -> None:
        self._devices = [device] if device.type == "cuda" else []
        self._seed, self._next = int(torch.randint(2**62, ())), 0

    @contextmanager
    def next(self) -> Iterator[None]:
        """Draw in the next stretch."""
        self._next += 1
        with self.at(self._next - 1):
            yield

    @contextmanager
    def at(self, number: int) -> Iterator[None]:
        """Draw in a stretch, counted from 0, what was drawn there before."""
        with torch.random.fork_rng(devices=self._devices):
            torch.manual_seed(self._seed + number)
            yield
