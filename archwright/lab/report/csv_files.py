"""All numbers of a study as CSV, unrounded: what other programs read."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from archwright.files import atomic_write
from archwright.lab.results import Effect, Interaction, RunResult, StudyResults

Line = dict[str, Any]


def write_tables(results: StudyResults, folder: str | Path) -> list[Path]:
    """Write the CSV files into a folder and return their paths."""
    paths = {Path(folder) / name: text for name, text in tables(results).items()}
    for path, text in paths.items():
        atomic_write(path, text)
    return list(paths)


def tables(results: StudyResults) -> dict[str, str]:
    """Return the contents of non-empty CSV files: exact numbers, `nan` if unknown."""
    every = [*results.runs, *results.shorter_runs]
    lengths = sorted({length for run in results.runs for length in run.lengths})
    files: dict[str, list[Line]] = {
        "runs.csv": [
            *(_run(run, results, lengths, "") for run in results.runs),
            *(_run(run, results, lengths, "shorter") for run in results.shorter_runs),
        ],
        "curves.csv": [
            {**_of(run, ("key", "variant", "seed", "lr")), **vars(point)}
            for run in every
            for point in run.curve
        ],
        "replicates.csv": [
            {
                **_of(found, ("variant", "seed", "loss", "lr", "at_boundary")),
                "best_key": found.best.key,
            }
            for found in results.replicates
        ],
        "effects.csv": [_effect(effect, results) for effect in results.effects],
        "horizons.csv": [line for effect in results.effects for line in _horizons(effect)],
        "interactions.csv": [_interaction(found) for found in results.interactions],
    }
    return {name: _text(lines) for name, lines in files.items() if lines}


def state(run: RunResult, results: StudyResults) -> str:
    """Return the state of an ended run."""
    if run.failed or run.diverged:
        return "failed" if run.failed else "diverged"
    spikes = results.spikes_at(run)
    return "spiked" if spikes and run.seed in spikes.seeds else "done"


def _run(run: RunResult, results: StudyResults, lengths: Sequence[int], role: str) -> Line:
    study = results.study
    role = role or ("tuning" if run.seed in study.tuning_seed_numbers else "compared")
    # Where each seed sweeps, or one tunes, rates that the grid has left behind count for nothing.
    sweeps = role == "tuning" or bool(study.widths)
    counts = results.counts(run)
    counts &= not sweeps or run.lr in results.grids.get(run.variant, ())
    at_lengths = {f"loss_at_{length}": run.lengths.get(length, float("nan")) for length in lengths}
    answers = {} if results.task is None else {"accuracy": run.accuracy}
    derived = {"role": role, "counts": counts, "state": state(run, results)}
    own = _without(run, ("diverged", "curve", "halves", "lengths", "accuracy"))
    return {**own, **derived, **at_lengths, **answers}


def _effect(effect: Effect, results: StudyResults) -> Line:
    both, equal = effect.interval, effect.equivalence
    nan, found = float("nan"), effect.multiplier
    low, high = found.interval if found else (nan, nan)
    tables = ("interval", "equivalence", "multiplier")
    return {
        **_without(effect, (*tables, "baseline_loss", "diverged")),
        "baseline": results.variants[0].name,
        "bits_per_byte": effect.bits_per_byte,
        "share": effect.share,
        **{"low": both.low, "high": both.high},
        **{"equivalence_low": equal.low, "equivalence_high": equal.high},
        "within_margin": effect.within_margin,
        "compute": found.compute if found else nan,
        **{"compute_low": low, "compute_high": high},
        **_listed(effect),
        "caveats": "; ".join(effect.caveats),
    }


def _horizons(effect: Effect) -> list[Line]:
    found = effect.multiplier.horizons if effect.multiplier else ()
    return [{"variant": effect.variant, **vars(horizon)} for horizon in found]


def _interaction(found: Interaction) -> Line:
    ends = {"low": found.interval.low, "high": found.interval.high}
    return {**_without(found, ("interval",)), **ends, **_listed(found)}


def _listed(found: Effect | Interaction) -> Line:
    """Return the seeds of pairs and their differences as text."""
    differences = " ".join(map(repr, map(float, found.differences)))
    return {"seeds": " ".join(map(str, found.seeds)), "differences": differences}


def _of(thing: object, names: Sequence[str]) -> Line:
    return {name: getattr(thing, name) for name in names}


def _without(thing: object, names: Sequence[str]) -> Line:
    return {name: value for name, value in vars(thing).items() if name not in names}


def _text(lines: Sequence[Line]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()
