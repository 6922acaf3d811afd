"""Output of a study at its end."""

from math import isfinite
from statistics import fmean

from archwright.format import accuracy, duration, listed, printable
from archwright.lab.results import Effect, StudyResults


def print_results(results: StudyResults, *, quiet: bool = False) -> None:
    """Print the verdict, and unless `quiet` the effects, notes, and where the page is."""
    lines = ["", results.verdict, results.scope]
    if not quiet:
        lines += [*_answers(results), "", *(f"  {_line(effect)}" for effect in results.effects)]
        lines += [*(f"  {note}" for note in results.notes), ""]
        lines += [
            f"{len(results.runs)} runs in {duration(results.seconds)}, "
            f"estimated: {duration(results.predicted_seconds)}",
            f"page  {results.folder}/report.html",
        ]
    print(printable("\n".join(lines)))


def _answers(results: StudyResults) -> list[str]:
    """Say how many answers of a task each variant has right."""
    if results.task is None or not results.accuracies:
        return []
    shares = [f"{name} {accuracy(fmean(found))}" for name, found in results.accuracies.items()]
    return [
        f"Answers of {results.task.name} that are right: {listed(shares)}; {accuracy(results.task.chance)} by guessing."
    ]


def _line(effect: Effect) -> str:
    low, high = effect.interval.low, effect.interval.high
    if effect.outcome == "identical":
        return effect.sentence
    why = f" because {listed([*effect.caveats])}" if effect.caveats else ""
    bits = effect.bits_per_byte
    return (
        f"{effect.variant}: {effect.outcome}{why}, {effect.mean:+.4f} nats per token "
        f"({low:+.4f} to {high:+.4f}){f', {bits:+.4f} bits per byte' if isfinite(bits) else ''}; "
        f"noise {effect.noise:.4f}, margin {effect.margin:.4f}, p {effect.holm_p_value:.2g}"
    )
