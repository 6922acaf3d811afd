"""A study of losses that are already there: a CSV file with a line for each run, or for each point of its curve."""

import csv
import math
from pathlib import Path

from archwright.lab.external.report import Told, pairing_notes, study_results, write
from archwright.lab.external.spec import ExternalSpec
from archwright.lab.procedure.sweep import replicate
from archwright.lab.procedure.verdict import effects
from archwright.lab.results import Point, RunResult, StudyResults
from archwright.reporting.document import Fact
from archwright.spec.errors import UserError, nearest

COLUMNS = ("variant", "seed", "loss", "lr", "step", "tokens")
Curves = dict[str, dict[int, list[tuple[Point, float]]]]


def compare_table(path: Path, spec: ExternalSpec, folder: Path) -> StudyResults:
    """Compare the losses of a CSV file, and write the page. Nothing is run; the first variant is the baseline.

    Raises:
        UserError: A missing column, a duplicate, an unpaired seed, or a value that is no number, with its line.
    """
    runs_by = _read(path)
    names = list(runs_by)
    spec = spec.model_copy(
        update={
            "variants": {name: (name,) for name in names},
            "seeds": max(2, max(map(len, runs_by.values()))),
            "tune_lr": False,
            "name": spec.name or path.stem,
        }
    )
    runs = [
        _run(name, seed, found) for name, seeds in runs_by.items() for seed, found in seeds.items()
    ]
    replicates = [replicate([run]) for run in runs]
    unit = spec.unit or "of the loss"
    found = effects(replicates, spec, names[0], unit=unit)  # type: ignore[arg-type]
    facts = [
        Fact("Losses", path.name, "given, nothing was run"),
        Fact("Baseline", names[0]),
        Fact("Pairs", str(len(runs_by[names[0]])), "judged once, by a fixed-sample interval"),
        Fact("Learning rates", "as given"),
    ]
    unequal = ["learning rates: as given", "everything else: known to the maker of the file only"]
    told = Told(spec, unit, "", unequal, facts, any(run.tokens for run in runs))
    notes = [
        "Losses were given. The interval is right if the number of seeds was chosen before they were seen.",
        *pairing_notes(found, replicates),
    ]
    grids: dict[str, list[float]] = {name: [] for name in names}
    results = study_results(told, found, runs, replicates, str(folder), grids, notes)
    write(results, told)
    return results


def _read(path: Path) -> Curves:
    """Return the points of each variant and seed."""
    found: Curves = {}
    lines: dict[tuple[str, int, int | None], int] = {}
    first: dict[tuple[str, int], int] = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        names = reader.fieldnames or []
        for column in COLUMNS[:3]:
            if column not in names:
                listed = ", ".join(names) or "an empty file"
                raise UserError(
                    f"{path}: found no column {column}; found {listed}.{nearest(column, names)}"
                )
        for row in reader:
            at = f"{path}, line {reader.line_num}"
            name = row["variant"].strip()
            seed, loss, step = (_number(row, c, at) for c in ("seed", "loss", "step"))
            if not name or seed is None or loss is None or seed != int(seed):
                raise UserError(
                    f"{at}: found {list(row.values())}; expected variant, whole seed, loss"
                )
            key = (name, int(seed), None if step is None else int(step))
            if key in lines:
                raise UserError(
                    f"{at}: {name}, seed {int(seed)} is there already, in line {lines[key]}"
                )
            lines[key] = reader.line_num
            first.setdefault(key[:2], reader.line_num)
            lr, tokens = (_number(row, c, at) or 0.0 for c in ("lr", "tokens"))
            point = Point(key[2] or 0, int(tokens) or key[2] or 0, math.nan, math.nan, loss)
            found.setdefault(name, {}).setdefault(int(seed), []).append((point, lr))
    if len(found) < 2:
        raise UserError(f"{path}: found {len(found)} variants; expected a baseline and one or more")
    baseline = next(iter(found))
    for (name, seed), line in first.items():
        for other in found if name == baseline else (baseline,):
            if seed not in found[other]:
                raise UserError(
                    f"{path}, line {line}: seed {seed} of {name} has no pair: {other} has no run of it; "
                    "add that run or remove this one"
                )
    if len(found[baseline]) < 2:
        raise UserError(f"{path}: found one seed; expected two or more")
    return found


def _run(name: str, seed: int, found: list[tuple[Point, float]]) -> RunResult:
    points = sorted(found, key=lambda pair: pair[0].step)
    (last, lr), nan = points[-1], math.nan
    if not math.isfinite(last.loss):
        raise UserError(
            f"{name}, seed {seed}: found the loss {last.loss}; expected a finite number"
        )
    curve = [point for point, _ in points] if len(points) > 1 else []
    key = f"{name}-{seed}"
    return RunResult(
        key, name, seed, lr, last.loss, nan, last.loss, tokens=last.tokens, curve=curve
    )


def _number(row: dict[str, str | None], column: str, at: str) -> float | None:
    text = (row.get(column) or "").strip()
    try:
        return float(text) if text else None
    except ValueError:
        raise UserError(f'{at}: {column}: found "{text}"; expected a number') from None
