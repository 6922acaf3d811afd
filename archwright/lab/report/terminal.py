"""Output of a study at its end."""

import json
import math
from dataclasses import asdict
from statistics import fmean
from typing import Any

from archwright.format import accuracy, duration, listed, printable
from archwright.lab.design.plan import Plan
from archwright.lab.design.widths import rates_words
from archwright.lab.procedure.verdict import FEW
from archwright.lab.results import StudyResults


def print_results(results: StudyResults, *, quiet: bool = False) -> None:
    """Print the verdict and, unless `quiet`, effects, notes, and the page's path."""
    lines = ["", results.verdict, results.scope]
    if not quiet:
        if results.task and results.accuracies:
            right = [
                f"{name} {accuracy(fmean(found))}" for name, found in results.accuracies.items()
            ]
            lines += [
                f"Answers of {results.task.name} that are right: {listed(right)}; "
                f"{accuracy(results.task.chance)} by guessing."
            ]
        # The verdict on few variants has their sentences.
        lines += ["", *(f"  {e.sentence}" for e in results.effects if len(results.effects) > FEW)]
        lines += [f"  {found.sentence}" for found in results.interactions]
        lines += [f"  {rates_words(drift)}" for drift in results.drifts]
        lines += [*(f"  {note}" for note in results.notes), ""]
        estimated = results.predicted_seconds
        known = f", estimated: {duration(estimated)}" if math.isfinite(estimated) else ""
        lines += [
            f"{len(results.runs) + len(results.shorter_runs)} runs in {duration(results.seconds)}{known}",
            f"page  {results.folder}/report.html",
        ]
    print(printable("\n".join(lines)))


def as_json(results: StudyResults) -> str:
    """Return results as JSON. Curves are in curves.csv; null is a number that is not finite."""
    values = asdict(results) | {"study": results.study.model_dump(mode="json")}
    for run in (*values["runs"], *values["shorter_runs"]):
        del run["curve"]
        run["halves"] = run["halves"] and {k: run["halves"][k] for k in ("tuning", "judged")}
    values["replicates"] = [{**r, "best": r["best"]["key"]} for r in values["replicates"]]
    for effect, found in zip(values["effects"], results.effects, strict=True):
        names = ("share", "bits_per_byte", "margin_share", "margin_compute", "within_margin")
        effect |= {name: getattr(found, name) for name in names}
        if found.multiplier:
            low, high = found.multiplier.interval
            effect["multiplier"] |= {
                "compute": found.multiplier.compute,
                "compute_low": low,
                "compute_high": high,
            }
    for name, found_there in values["spikes"].items():
        for spikes, lr in zip(found_there, results.spike_rates(name), strict=False):
            spikes["lr"] = lr
    return json.dumps(_finite(values), indent=2, ensure_ascii=False)


def plan_as_json(plan: Plan) -> str:
    """Return a plan as JSON."""
    values = {
        "study": plan.study.model_dump(mode="json"),
        "variants": [
            {"name": arm.name, "words": arm.words, **asdict(arm.counts)}
            for arm in plan.arms.values()
        ],
        "num_runs": plan.num_runs,
        "steps": plan.steps,
        "tokens_per_run": plan.tokens_per_run,
        "evaluation_tokens": plan.evaluation_tokens,
        "predicted_seconds": plan.seconds,
        "workers": plan.workers,
    }
    return json.dumps(_finite(values), indent=2, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
