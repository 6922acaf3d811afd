"""All numbers of a study as CSV, unrounded: what other programs read."""

import csv
import io
from collections.abc import Mapping, Sequence
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
    """Return the contents of each CSV file: exact numbers, unknown ones as `nan`."""
    every = [*results.runs, *results.shorter_runs]
    lengths = sorted({length for run in results.runs for length in run.lengths})
    horizons = [line for effect in results.effects for line in _horizons(effect)]
    files = {
        "runs.csv": _text(
            RUN,
            [
                _run(run, results, lengths, role)
                for role, runs in (("", results.runs), ("shorter", results.shorter_runs))
                for run in runs
            ],
        ),
        "curves.csv": _text(
            POINT, [{**_of(run, POINT[:4]), **vars(point)} for run in every for point in run.curve]
        ),
        "replicates.csv": _text(
            REPLICATE, [{**_of(r, REPLICATE), "best_key": r.best.key} for r in results.replicates]
        ),
        "effects.csv": _text(EFFECT, [_effect(e, results) for e in results.effects]),
    }
    if horizons:
        files["horizons.csv"] = _text([*horizons[0]], horizons)
    if results.interactions:
        lines = [_interaction(found) for found in results.interactions]
        files["interactions.csv"] = _text([*lines[0]], lines)
    return files


RUN = [
    "key",
    "variant",
    "seed",
    "lr",
    "role",
    "counts",
    "state",
    "loss",
    "bits_per_byte",
    "initial_loss",
    "tokens",
    "seconds",
    "cpu_seconds",
    "tokens_per_second",
    "memory_bytes",
    "failed",
    "command",
]
POINT = ["key", "variant", "seed", "lr", "step", "tokens", "flops", "seconds", "loss", "train_loss"]
REPLICATE = ["variant", "seed", "loss", "lr", "at_boundary", "best_key"]
EFFECT = [
    "variant",
    "baseline",
    "outcome",
    "mean",
    "low",
    "high",
    "method",
    "t_low",
    "t_high",
    "equivalence_low",
    "equivalence_high",
    "margin",
    "noise",
    "p_value",
    "holm_p_value",
    "bits_per_byte",
    "unit",
    "loss_per_bit_per_byte",
    "text_error",
    "placing_error",
    "compute",
    "compute_low",
    "compute_high",
    "time",
    "seeds",
    "differences",
    "caveats",
    "sentence",
]


def state(run: RunResult) -> str:
    """Return how a run ended, in a word."""
    return "failed" if run.failed else "diverged" if run.diverged else "done"


def _run(run: RunResult, results: StudyResults, lengths: Sequence[int], role: str) -> Line:
    study = results.study
    role = role or ("tuning" if run.seed in study.tuning_seed_numbers else "compared")
    # Where each seed sweeps, or one tunes, rates that the grid has left behind count for nothing.
    sweeps = role == "tuning" or (study.tune_lr and study.procedure == "sweep")
    counts = not sweeps or run.lr in results.grids.get(run.variant, ())
    at_lengths = {f"loss_at_{length}": run.lengths.get(length, float("nan")) for length in lengths}
    answers = {} if results.task is None else {"accuracy": run.accuracy}
    derived = {"role": role, "counts": counts, "state": state(run)}
    return {**_of(run, RUN), **derived, **at_lengths, **answers}


def _effect(effect: Effect, results: StudyResults) -> Line:
    t, both, equal = effect.t_interval, effect.interval, effect.equivalence
    nan, found = float("nan"), effect.multiplier
    low, high = found.interval if found else (nan, nan)
    return {
        **_of(effect, EFFECT),
        "baseline": results.variants[0].name,
        **{"low": both.low, "high": both.high, "method": both.method},
        **{"t_low": t.low, "t_high": t.high},
        **{"equivalence_low": equal.low, "equivalence_high": equal.high},
        "compute": found.compute if found else nan,
        **{"compute_low": low, "compute_high": high},
        "time": found.tokens * found.seconds if found else nan,
        "seeds": " ".join(map(str, effect.seeds)),
        "differences": " ".join(map(repr, map(float, effect.differences))),
        "caveats": "; ".join(effect.caveats),
    }


def _horizons(effect: Effect) -> list[Line]:
    found = effect.multiplier.horizons if effect.multiplier else ()
    return [{"variant": effect.variant, **vars(horizon)} for horizon in found]


def _interaction(found: Interaction) -> Line:
    return {
        **_of(found, ("first", "second", "both", "mean")),
        **{"low": found.interval.low, "high": found.interval.high, "p_value": found.p_value},
        "seeds": " ".join(map(str, found.seeds)),
        "differences": " ".join(map(repr, map(float, found.differences))),
        "sentence": found.sentence,
    }


def _of(thing: object, names: Sequence[str]) -> Line:
    return {name: getattr(thing, name) for name in names if hasattr(thing, name)}


def _text(columns: Sequence[str], lines: Sequence[Mapping[str, object]]) -> str:
    """Return lines under their head; a column that only lines have comes last."""
    assert all(line.keys() >= {*columns} for line in lines)
    more = [name for name in (lines[0] if lines else ()) if name not in columns]
    file = io.StringIO()
    writer = csv.DictWriter(file, [*columns, *more], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()
