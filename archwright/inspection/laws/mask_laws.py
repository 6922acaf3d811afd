"""Laws of attention masks: optional members of a pattern agree with `visible`."""

import torch

from archwright.inspection.laws.case import Case
from archwright.inspection.laws.law import Broken
from archwright.parts.masks import MaskPattern, pairs, visible_block

LENGTHS = (1, 2, 13, 150)
"""Document lengths, one of them longer than a block of queries."""
BLOCK = 128
"""Queries of the blocks that kernels compute."""


def members_follow_visible(case: Case) -> None:
    """Its `ranges`, `pairs`, `lookback` and `lookahead` agree with `visible`."""
    for pattern in case.model.masks.values():
        for length in LENGTHS:
            check_members(pattern, length)


def check_members(pattern: MaskPattern, length: int) -> None:
    """Compare a pattern's members with `visible` on all pairs of a document.

    Raises:
        Broken: a member differs.
    """
    text = f"in a document of {length} tokens"
    seen = visible_block(pattern, 0, length, 0, length, length)  # [heads, queries, keys]
    if not bool(seen.any(-1).all()):
        raise Broken(
            f"{text}, visible shows some query no key; expected at least one, such as itself"
        )
    number = seen.sum().item() / len(seen)
    if abs(pairs(pattern, length) - number) > 1e-9 * number:
        counted = pairs(pattern, length)
        raise Broken(f"{text}, pairs returns {counted:,} and visible shows {number:,}")
    queries, keys = seen.any(0).nonzero(as_tuple=True)  # [visible pairs]
    reach = {"lookback": (queries - keys, pattern.lookback)}
    reach["lookahead"] = (keys - queries, pattern.lookahead)
    for name, (distance, declared) in reach.items():
        if declared is not None and (farthest := int(distance.max())) > declared:
            raise Broken(
                f"{text}, {name} is {declared} and a visible key is {farthest} tokens away"
            )
    for size in (BLOCK, 5, 1):
        for first in range(0, length, max(size, length // 30)):
            stop = min(first + size, length)
            ranges = pattern.ranges(first, stop - 1, length)
            ends = [0, *(end for keys in ranges for end in keys), length]
            if ends != sorted(ends) or any(start >= stop for start, stop in ranges):
                raise Broken(f"{text}, ranges({first}, {stop - 1}) returns {ranges}, not in order")
            inside = torch.zeros(length, dtype=torch.bool)
            for start, end in ranges:
                inside[start:end] = True
            missing = (seen[:, first:stop].flatten(0, 1).any(0) & ~inside).nonzero()
            if len(missing):
                raise Broken(
                    f"{text}, ranges({first}, {stop - 1}) returns {ranges} and visible also shows "
                    f"key {int(missing[0])}"
                )
