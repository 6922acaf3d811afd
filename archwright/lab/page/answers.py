"""Right answers of a study on a task."""

from statistics import fmean

from archwright import format as fmt
from archwright.lab.results import StudyResults
from archwright.reporting.document import Row, Section, Table


def answers_section(results: StudyResults) -> Section | None:
    """List how many answers each variant has right, beside guessing; nothing of a study on documents."""
    task, found = results.task, results.accuracies
    if task is None or not found:
        return None
    rows = [
        Row(
            (
                name,
                fmt.accuracy(fmean(shares)),
                fmt.accuracy(min(shares)),
                fmt.accuracy(max(shares)),
                str(len(shares)),
            )
        )
        for name, shares in found.items()
    ]
    least = ""
    if task.floor:
        floor = fmt.loss(task.floor)
        least = f" Over all examples there could be, no model comes below {floor} nats per answer."
    caption = (
        f"Share of the answers of {task.name} that are right at the end of each seed's best run, on held-out examples; "
        f"{fmt.accuracy(task.chance)} are right by guessing.{least}"
    )
    return Section("Answers", [Table(caption, ("Variant", "Mean", "Least", "Most", "Seeds"), rows)])
