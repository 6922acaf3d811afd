"""Output of `archwright profile`: what is counted without a measurement, and several models side by side."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from archwright import format as fmt
from archwright.planning.cost import BACKWARD

if TYPE_CHECKING:
    from archwright.spec.run_spec import RunSpec
    from archwright.training.profiling import PartProfile, Profile

NOTABLE = 1.1
"""Times as long that a part must take for a word on it."""


def counted(name: str, run: "RunSpec", batch_size: int, length: int | None) -> Iterator[str]:
    """Yield a table of FLOPs and bytes by part, of a model of any size: it is built without memory."""
    from archwright.model.build import build
    from archwright.planning.plans import refuse_positions
    from archwright.planning.roofline import Operator, operators

    length = length or run.model.context_length
    refuse_positions(run.model, length)
    model = build(run.model, device="meta")
    target_length = run.objective.target_length(length)
    found = operators(
        model, "training", texts=batch_size, length=length, target_length=target_length
    )
    whole = Operator("all", sum(o.flops for o in found), sum(o.num_bytes for o in found))
    yield (
        f"{name}: {fmt.count(model.num_parameters())} parameters, {batch_size} rows of {length:,} tokens; "
        "counted, not measured"
    )
    yield ""
    rows = [("part", "forward", "backward", "share", "bytes", "share", "FLOPs per byte")]
    for each in (*found, whole):
        forward = each.flops / (1 + BACKWARD)
        rows.append(
            (
                each.name,
                fmt.flops(forward),
                fmt.flops(BACKWARD * forward),
                fmt.percent(each.flops / whole.flops),
                fmt.size(each.num_bytes),
                fmt.percent(each.num_bytes / whole.num_bytes),
                fmt.significant(each.intensity),
            )
        )
    yield from fmt.columns(rows, right=range(1, 7))
    yield ""
    yield (
        "Bytes in 16 bits, as if every product read its factors and wrote its result once, and attention kept no "
        "scores. FLOPs of norms are estimated."
    )


def side_by_side(found: Mapping[str, "Profile"]) -> Iterator[str]:
    """Yield the milliseconds of each part in a column for each model, and what runs against its arithmetic."""
    names = list(dict.fromkeys(part.name for each in found.values() for part in each.parts))
    parts = {name: {part.name: part for part in each.parts} for name, each in found.items()}
    rows = [["ms", *found]]
    for part in names:
        of_all = [1e3 * parts[name][part].seconds if part in parts[name] else 0.0 for name in found]
        if any(of_all):
            rows.append([part, *(f"{ms:.2f}" for ms in of_all)])
    rows.append(["whole step", *(f"{1e3 * each.total.seconds:.2f}" for each in found.values())])
    rows.append(["plain step", *(f"{1e3 * each.step:.2f}" for each in found.values())])
    yield from fmt.columns(rows, right=range(1, len(found) + 1))
    lines = [*_inverted(parts)]
    if lines:
        yield from ("", *lines)


def _inverted(parts: Mapping[str, Mapping[str, "PartProfile"]]) -> Iterator[str]:
    """Say where a part that computes less takes longer, and why, by the bytes that its operations move."""
    names = list(parts)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            for part in parts[first].keys() & parts[second].keys():
                pair = parts[first][part], parts[second][part]
                for (a, mine), (b, theirs) in (
                    ((first, pair[0]), (second, pair[1])),
                    ((second, pair[1]), (first, pair[0])),
                ):
                    if mine.flops < theirs.flops and mine.seconds > NOTABLE * theirs.seconds > 0:
                        yield _sentence(part, a, mine, b, theirs)


def _sentence(
    part: str, slower: str, mine: "PartProfile", faster: str, theirs: "PartProfile"
) -> str:
    def times(a: float, b: float) -> str:
        return f"{fmt.significant(a / b)} times" if b else "many times"

    moved = times(mine.num_bytes, theirs.num_bytes)
    why = (
        "more passes over memory, where the other has one fused kernel for all of it"
        if mine.num_bytes > theirs.num_bytes
        else "more or slower operations for as much memory"
    )
    return (
        f"{part}: {slower} takes {times(mine.seconds, theirs.seconds)} as long as {faster}, for "
        f"{times(mine.flops, theirs.flops)} the FLOPs and {moved} the bytes. What computes less is slower on this "
        f"machine: it makes {why}."
    )
