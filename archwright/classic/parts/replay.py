"""Reproducible random numbers: a recomputed layer repeats the dropout of its first pass."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Replay:
    """Random numbers of a pass, in stretches with one seed each.

    Seeds are consecutive from a number drawn at construction.

    Args:
        device: device of the random numbers.
    """

    def __init__(self, device: torch.device) -> None:
        self._devices = [device] if device.type == "cuda" else []
        self._seed, self._next = int(torch.randint(2**62, ())), 0

    @contextmanager
    def next(self) -> Iterator[None]:
        """Draw from the next stretch."""
        self._next += 1
        with self.at(self._next - 1):
            yield

    @contextmanager
    def at(self, number: int) -> Iterator[None]:
        """Draw from a stretch, counted from 0; each time with the same numbers."""
        with torch.random.fork_rng(devices=self._devices):
            torch.manual_seed(self._seed + number)
            yield
