"""Studies of existing losses: a CSV file with a line per run or per point of a curve."""

import csv
import math
from pathlib import Path

from archwright.lab.external.execution import Execution, Run
from archwright.lab.external.metric import Reading
from archwright.lab.external.spec import ExternalSpec
from archwright.spec.errors import UserError, nearest

NUMBERS = ("seed", "loss", "lr", "step", "tokens")


def given(path: Path, spec: ExternalSpec, folder: Path) -> Execution:
    """Return a complete study of the losses in a CSV file.

    Raises:
        UserError: A missing column, a duplicate, an unpaired seed, or an invalid number, with its line.
    """
    runs: dict[tuple[str, int], dict[int | None, tuple[Reading, float, int]]] = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        names = reader.fieldnames or []
        for column in ("variant", *NUMBERS[:2]):
            if column not in names:
                listed = ", ".join(names) or "an empty file"
                hint = nearest(column, names)
                raise UserError(f"{path}: found no column {column}; found {listed}.{hint}")
        for row in reader:
            line = reader.line_num
            variant, numbers = (row["variant"] or "").strip(), [_number(row, n) for n in NUMBERS]
            if not variant or any(n is not None and not math.isfinite(n) for n in numbers):
                raise UserError(
                    f"{path}, line {line}: found {', '.join(map(str, row.values()))}; "
                    f"expected {', '.join(names)}, all numbers finite"
                )
            seed, loss, lr, step, tokens = numbers
            if seed is None or loss is None or seed != int(seed):
                raise UserError(f"{path}, line {line}: expected a whole seed and a loss")
            curve = runs.setdefault((variant, int(seed)), {})
            at, read = (None if n is None else int(n) for n in (step, tokens))
            if at in curve:
                raise UserError(
                    f"{path}, line {line}: {variant}, seed {int(seed)} is in line {curve[at][2]} too"
                )
            curve[at] = (Reading(at, read, loss), lr or 0.0, line)
    variants = dict.fromkeys(variant for variant, _ in runs)
    if len(variants) < 2 or len(runs) < 4:
        raise UserError(
            f"{path}: found {len(variants)} variants, {len(runs)} runs; expected two of each seed, two seeds or more"
        )
    baseline = next(iter(variants))
    for (variant, seed), curve in runs.items():
        for other in variants if variant == baseline else (baseline,):
            if (other, seed) not in runs:
                line = min(line for *_, line in curve.values())
                raise UserError(
                    f"{path}, line {line}: seed {seed} of {variant} has no pair: add a run of {other}, or remove it"
                )
    seeds = tuple(sorted({seed for _, seed in runs}))
    update = {"variants": {name: (name,) for name in variants}, "seeds": len(seeds), "given": seeds}
    update |= {"early_stopping": False, "tune_lr": False, "name": spec.name or path.stem}
    execution = Execution(spec.model_copy(update=update), folder)
    for (variant, seed), curve in runs.items():
        points = sorted(curve.values(), key=lambda found: found[0].step or 0)
        readings = [reading for reading, *_ in points]
        values = {"readings": readings, "seconds": math.nan, "lr": points[-1][1]}
        execution.results[Run(variant, seed, 0.0, None)] = values
    return execution


def _number(row: dict[str, str], column: str) -> float | None:
    """Return a number, None for an empty cell, NaN for anything else."""
    text = (row.get(column) or "").strip()
    try:
        return float(text) if text else None
    except ValueError:
        return math.nan
