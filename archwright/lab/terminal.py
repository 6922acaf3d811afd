"""What a study prints at its end."""

from archwright.lab.results import Effect, StudyResults
from archwright.reporting.words import duration, listed


def print_results(results: StudyResults, *, quiet: bool = False) -> None:
    """Print the verdict, and unless `quiet` the effects, notes, and where the page is."""
    print()
    print(results.verdict)
    print(results.scope)
    if quiet:
        return
    print()
    for effect in results.effects:
        print(f"  {_line(effect)}")
    for note in results.notes:
        print(f"  {note}")
    print()
    print(
        f"{len(results.runs)} runs in {duration(results.seconds)}, "
        f"foreseen: {duration(results.predicted_seconds)}"
    )
    print(f"page  {results.folder}/report.html")


def _line(effect: Effect) -> str:
    low, high = effect.interval.low, effect.interval.high
    if effect.outcome == "identical":
        return effect.sentence
    why = f" because {listed([*effect.reservations])}" if effect.reservations else ""
    return (
        f"{effect.variant}: {effect.outcome}{why}, {effect.mean:+.4f} nats per token "
        f"({low:+.4f} to {high:+.4f}), {effect.bits_per_byte:+.4f} bits per byte; "
        f"noise {effect.noise:.4f}, margin {effect.margin:.4f}, p {effect.holm_p_value:.2g}"
    )
