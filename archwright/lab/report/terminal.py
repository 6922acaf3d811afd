"""Output of a study at its end."""

import json
import math
from dataclasses import asdict
from statistics import fmean
from typing import Any

from archwright.format import accuracy, duration, listed, printable
from archwright.lab.design.plan import Plan
from archwright.lab.design.widths import rates_words
from archwright.lab.procedure.verdict import (
    AT_EQUAL_TOKENS,
    compute_words,
    diverged_words,
    is_at_odds,
)
from archwright.lab.results import Effect, StudyResults


def print_results(results: StudyResults, *, quiet: bool = False) -> None:
    """Print the verdict, and unless `quiet` the effects, notes, and where the page is."""
    lines = ["", results.verdict, results.scope]
    if not quiet:
        several = len(results.effects) > 1
        if results.task and results.accuracies:
            right = [
                f"{name} {accuracy(fmean(found))}" for name, found in results.accuracies.items()
            ]
            lines += [
                f"Answers of {results.task.name} that are right: {listed(right)}; "
                f"{accuracy(results.task.chance)} by guessing."
            ]
        lines += ["", *(f"  {_line(e, several)}" for e in results.effects)]
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
    """Return results as JSON without curves, which are in curves.csv; null is no finite number."""
    values = asdict(results) | {"study": results.study.model_dump(mode="json")}
    for run in (*values["runs"], *values["shorter_runs"]):
        del run["curve"]
        run["halves"] = run["halves"] and {k: run["halves"][k] for k in ("tuning", "judged")}
    values["replicates"] = [{**r, "best": r["best"]["key"]} for r in values["replicates"]]
    for effect, found in zip(values["effects"], results.effects, strict=True):
        effect |= {"share": found.share, "bits_per_byte": found.bits_per_byte}
        if found.multiplier:
            low, high = found.multiplier.interval
            effect["multiplier"] |= {
                "compute": found.multiplier.compute,
                "compute_low": low,
                "compute_high": high,
            }
    return json.dumps(_finite(values), indent=2, ensure_ascii=False)


def plan_as_json(plan: Plan) -> str:
    """Return what is about to be run as JSON."""
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


def _line(effect: Effect, several: bool) -> str:
    low, high = effect.interval.low, effect.interval.high
    # Of several, those that are inconclusive say what would decide them, as the verdict does of one alone.
    if effect.outcome == "identical" or (several and effect.outcome == "inconclusive"):
        return effect.sentence
    why = f" because {listed([*effect.caveats])}" if effect.caveats else ""
    if effect.outcome == "inconclusive":
        return f"{effect.variant}: inconclusive{why}"
    if effect.diverged:
        return f"{effect.variant}: {effect.outcome}, {diverged_words(effect)}"
    compute = f"{compute_words(effect.multiplier)}, " if effect.multiplier else ""
    alone = AT_EQUAL_TOKENS * is_at_odds(effect)
    bits = math.nan if effect.unit == "bits per byte" else effect.bits_per_byte
    return (
        f"{effect.variant}: {effect.outcome}{alone}{why}, {compute}{effect.mean:+.4f} {effect.unit} "
        f"({low:+.4f} to {high:+.4f}){f', {bits:+.4f} bits per byte' if math.isfinite(bits) else ''}"
        f"; noise {effect.noise:.4f}, margin {effect.margin:.4f}, p {effect.holm_p_value:.2g}"
    )
