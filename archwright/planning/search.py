"""Search for setups of a training that fit on the devices of a workload."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from archwright.planning.activations import CHECKPOINTING
from archwright.planning.split import Split, splits
from archwright.planning.stages import Needs
from archwright.planning.training_memory import Setup, setup
from archwright.planning.workload import Workload
from archwright.spec.errors import UserError

NEAR = 1.1
"""Times of a step up to this factor above the shortest are as good; the simplest setup is taken."""
MOST_ASKED = 2**17
"""Largest number of devices in the search for a setup that fits."""


def fastest(ways: list[Setup], work: Workload, per_token: float) -> Setup | None:
    """Return the first setup that fits with about the shortest time of a step."""
    fitting = [way for way in ways if not work.why_not(way)]
    times = [work.seconds(way, per_token) for way in fitting]
    return next(
        (way for way, t in zip(fitting, times, strict=True) if t <= NEAR * min(times)), None
    )


def fastest_by_sort(ways: list[Setup], work: Workload, per_token: float) -> tuple[Setup, ...]:
    """Return one setup per combination of parallelism, in order: the fastest that fits, or the smallest."""
    sorts: dict[tuple[object, ...], list[Setup]] = {}
    for way in ways:
        split = way.split
        sorts.setdefault((split.data, split.copies > 1, split.chunks, *split.axes), []).append(way)
    return tuple(
        fastest(group, work, per_token) or min(group, key=lambda way: way.memory.total)
        for group in sorts.values()
    )


def spares(way: Setup, chosen: Setup, work: Workload) -> bool:
    """True if a setup fits and recomputes less than `chosen` with the same split."""
    less = CHECKPOINTING.index(way.checkpointing) < CHECKPOINTING.index(chosen.checkpointing)
    return way.split == chosen.split and less and not work.why_not(way)


def ways(needs: Needs, work: Workload, per_token: float) -> list[Setup]:
    """Return setups by split, and within a split by estimated time, fitting ones first.

    Raises:
        UserError: a micro-batch exceeds the sequences of a group of devices.
    """
    possible = [*_splits(needs, work, work.devices)]
    most = max(split.share_of(work.texts) for split in possible)
    if work.micro_batch is not None and work.micro_batch > most:
        raise UserError(
            f"micro-batch: found {work.micro_batch:,}; expected at most {int(most):,}, the sequences of a step for a "
            "group of devices"
        )

    def seconds(way: Setup) -> float:
        return inf if work.why_not(way) else work.seconds(way, per_token)

    return [
        way
        for split in possible
        for way in sorted(
            (
                setup(needs, split, again, work.texts, work.micro_batch, work.memory, work.server)
                for again in CHECKPOINTING
            ),
            key=seconds,
        )
    ]


def _splits(needs: Needs, work: Workload, devices: int) -> Iterator[Split]:
    """Yield the possible splits over `devices`, or only the requested split."""
    if work.split is None:
        yield from splits(devices, needs.degrees)
    else:
        yield replace(work.split, devices=devices)


def fewest(needs: Needs, work: Workload) -> int | None:
    """Return the number of devices, doubled until a setup fits; None above `MOST_ASKED`."""
    micro = work.micro_batch or 1
    for devices in larger_numbers(work.devices):
        for split in _splits(needs, work, devices):
            # HSDP and interleaved stages take more memory than without.
            if work.split is None and (split.copies > 1 or split.chunks > 1):
                continue
            ways = (setup(needs, split, again, work.texts, micro) for again in CHECKPOINTING)
            if not all(map(work.why_not, ways)):
                return devices
    return None


def larger_numbers(devices: int) -> Iterator[int]:
    """Yield larger numbers of devices to try, doubling up to `MOST_ASKED`."""
    while 2 * devices <= MOST_ASKED:
        devices *= 2
        yield devices
