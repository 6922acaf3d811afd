"""Output of `archwright profile`: what is counted without a measurement, and several models side by side."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any

from archwright import format as fmt
from archwright.catalogue.part_titles import part_title

if TYPE_CHECKING:
    from archwright.planning.roofline import Operator
    from archwright.spec.run_spec import RunSpec
    from archwright.training.profiling import PartProfile, Profile

NOTABLE = 1.1
"""Times as long that a part must take for a word on it."""


@dataclass(frozen=True)
class CountedStep:
    """FLOPs and bytes of a training step by part, counted from a model built without memory."""

    name: str
    num_parameters: int
    batch_size: int
    length: int
    target_length: int
    """Tokens that the decoder of an encoder-decoder reads beside each source; of other models the length."""
    precision: str
    keeps_scores: bool
    parts: "list[Operator]"

    @property
    def total(self) -> "Operator":
        """The sum of all parts."""
        from archwright.planning.roofline import Operator

        sums = (sum(each.flops for each in self.parts), sum(each.num_bytes for each in self.parts))
        return Operator("all", *sums, sum(each.forward for each in self.parts), "estimated")

    def record(self) -> dict[str, Any]:
        """Return all values, ready for JSON."""
        keys = ("name", "num_parameters", "batch_size", "length", "target_length", "precision")
        return {
            **{key: getattr(self, key) for key in keys},
            "parts": [{"name": each.name, **each.record()} for each in self.parts],
            "total": self.total.record(),
        }

    def table(self) -> Iterator[str]:
        """Yield the lines of a table of parts."""
        whole = self.total
        yield (
            f"{self.name}: {fmt.count(self.num_parameters)} parameters, {self.batch_size} rows of {self.length:,} "
            "tokens; counted, not measured"
        )
        yield ""
        rows = [
            ("part", "forward", "backward, update", "share", "bytes", "share", "FLOPs per byte")
        ]
        for each in (*self.parts, whole):
            rows.append(
                (
                    part_title(each.name),
                    fmt.flops(each.forward) if each.forward else "-",
                    fmt.flops(each.flops - each.forward),
                    fmt.percent(each.flops / whole.flops),
                    fmt.size(each.num_bytes),
                    fmt.percent(each.num_bytes / whole.num_bytes),
                    fmt.significant(each.intensity),
                )
            )
        yield from fmt.columns(rows, right=range(1, 7))
        yield ""
        scores = "wrote its scores and read them again" if self.keeps_scores else "kept no scores"
        yield (
            f"Bytes in {self.precision}, as if every product read its factors and wrote its result once, and attention "
            f"{scores}. FLOPs of products with weights and of attention are counted, all others estimated."
        )


def counted_step(
    name: str, run: "RunSpec", batch_size: int, length: int | None, precision: str, kernel: str
) -> CountedStep:
    """Count a step of a model of any size: it is built without memory."""
    from archwright.model.build import build
    from archwright.planning.plans import refuse_positions
    from archwright.planning.roofline import operators
    from archwright.planning.serving import BYTES

    length = length or run.model.context_length
    refuse_positions(run.model, length)
    model = build(run.model, device="meta")
    target_length = run.objective.target_length(length)
    precision = "bf16" if precision == "auto" else precision
    parts = operators(
        model,
        "training",
        texts=batch_size,
        length=length,
        target_length=target_length,
        itemsize=BYTES[precision],
        keeps_scores=kernel == "eager",
        run=run,
    )
    return CountedStep(
        name,
        model.num_parameters(),
        batch_size,
        length,
        target_length or length,
        precision,
        kernel == "eager",
        parts,
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
    for slower, faster in permutations(parts, 2):
        for part in parts[slower].keys() & parts[faster].keys():
            mine, theirs = parts[slower][part], parts[faster][part]
            if mine.flops < theirs.flops and mine.seconds > NOTABLE * theirs.seconds > 0:
                yield _sentence(part, slower, mine, faster, theirs)


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
