"""Tables of `archwright profile`: counted FLOPs and bytes of a step, and a comparison of models."""

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
"""Minimum ratio between a part's times in two models that causes a remark."""


@dataclass(frozen=True)
class CountedStep:
    """FLOPs and bytes of each part of a training step, counted without measurement."""

    name: str
    num_parameters: int
    batch_size: int
    length: int
    target_length: int
    """Decoder tokens per source in an encoder-decoder; `length` in other models."""
    precision: str
    keeps_scores: bool
    parts: "list[Operator]"

    @property
    def total(self) -> "Operator":
        """The sum of all parts."""
        from archwright.planning.roofline import Operator

        sums = (sum(part.flops for part in self.parts), sum(part.num_bytes for part in self.parts))
        return Operator("all", *sums, sum(part.forward for part in self.parts), "estimated")

    def record(self) -> dict[str, Any]:
        """Return all values, ready for JSON."""
        keys = ("name", "num_parameters", "batch_size", "length", "target_length", "precision")
        return {
            **{key: getattr(self, key) for key in keys},
            "parts": [{"name": part.name, **part.record()} for part in self.parts],
            "total": self.total.record(),
        }

    def table(self) -> Iterator[str]:
        """Yield the lines of a table of parts."""
        total = self.total
        yield (
            f"{self.name}: {fmt.count(self.num_parameters)} parameters, {self.batch_size} sequences of {self.length:,} "
            "tokens; counted, not measured"
        )
        yield ""
        rows = [
            ("part", "forward", "backward, update", "share", "bytes", "share", "FLOPs per byte")
        ]
        for part in (*self.parts, total):
            rows.append(
                (
                    part_title(part.name),
                    fmt.flops(part.forward) if part.forward else "-",
                    fmt.flops(part.flops - part.forward),
                    fmt.percent(part.flops / total.flops),
                    fmt.size(part.num_bytes),
                    fmt.percent(part.num_bytes / total.num_bytes),
                    fmt.significant(part.intensity),
                )
            )
        yield from fmt.columns(rows, right=range(1, 7))
        yield ""
        scores = "wrote its scores and read them again" if self.keeps_scores else "kept no scores"
        yield (
            f"Bytes in {self.precision}, as if every operation read and wrote each of its tensors, and attention "
            f"{scores}; a compiler that fuses operations moves fewer. FLOPs of products with weights and of attention "
            "are counted, all others estimated."
        )


def counted_step(
    name: str, run: "RunSpec", batch_size: int, length: int | None, precision: str, kernel: str
) -> CountedStep:
    """Count the FLOPs and bytes of a training step; the model is built on the meta device."""
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
        kernel="eager" if kernel == "eager" else "flex",
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


def side_by_side(profiles: Mapping[str, "Profile"]) -> Iterator[str]:
    """Yield milliseconds per part and model, and remarks on slow parts."""
    names = list(dict.fromkeys(part.name for p in profiles.values() for part in p.parts))
    parts = {name: {part.name: part for part in p.parts} for name, p in profiles.items()}
    rows = [["ms", *profiles]]
    for part in names:
        of_all = [1e3 * p[part].seconds if part in p else 0.0 for p in parts.values()]
        if any(of_all):
            rows.append([part, *(f"{ms:.2f}" for ms in of_all)])
    rows.append(["whole step", *(f"{1e3 * p.total.seconds:.2f}" for p in profiles.values())])
    rows.append(["plain step", *(f"{1e3 * p.step:.2f}" for p in profiles.values())])
    yield from fmt.columns(rows, right=range(1, len(profiles) + 1))
    lines = [*_inverted(parts)]
    if lines:
        yield from ("", *lines)


def _inverted(parts: Mapping[str, Mapping[str, "PartProfile"]]) -> Iterator[str]:
    """Yield a remark for each part that has fewer FLOPs in one model than in another, but takes more time."""
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
        "more passes over memory instead of a single fused kernel"
        if mine.num_bytes > theirs.num_bytes
        else "more or slower operations on the same amount of memory"
    )
    return (
        f"{part}: {slower} takes {times(mine.seconds, theirs.seconds)} as long as {faster}, for "
        f"{times(mine.flops, theirs.flops)} the FLOPs and {moved} the bytes. The part with fewer FLOPs is slower on "
        f"this machine: it makes {why}."
    )
