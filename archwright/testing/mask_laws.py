"""Laws of attention masks: optional members of a pattern agree with `visible`."""

from archwright.parts.masks import MaskPattern, pairs, visible_block
from archwright.testing.case import Case
from archwright.testing.law import Broken

LENGTHS = (1, 2, 13, 150)
"""Document lengths, one of them longer than a block of 128 queries."""


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
    number, counted = seen.sum().item() / len(seen), pairs(pattern, length)
    if abs(counted - number) > 1e-9 * number:
        raise Broken(f"{text}, pairs returns {counted:,} and visible shows {number:,}")
    union = seen.any(0)  # [queries, keys]
    queries, keys = union.nonzero(as_tuple=True)
    back, ahead = int((queries - keys).max()), int((keys - queries).max())
    for name, reach, declared in (
        ("lookback", back, pattern.lookback),
        ("lookahead", ahead, pattern.lookahead),
    ):
        if declared is not None and reach > declared:
            raise Broken(f"{text}, {name} is {declared} and a visible key is {reach} tokens away")
    blocks = [(first, size) for size in (128, 5, 1) for first in range(0, length, max(size, 5))]
    for first, stop in ((first, min(first + size, length)) for first, size in blocks):
        ranges = pattern.ranges(first, stop - 1, length)
        call = f"ranges({first}, {stop - 1}, {length}) returns {ranges}"
        ends = [0, *(end for keys in ranges for end in keys), length]
        if ends != sorted(ends) or any(start >= stop for start, stop in ranges):
            raise Broken(f"{call}; expected ascending ranges that are not empty")
        missing = union[first:stop].any(0)
        for start, end in ranges:
            missing[start:end] = False
        if bool(missing.any()):
            raise Broken(f"{call}, and visible also shows key {int(missing.nonzero()[0])}")
