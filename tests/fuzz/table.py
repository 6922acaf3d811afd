"""What was counted, as a table for the terminal or for a page."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[object]], *, markdown: bool = False) -> str:
    """Return a table; the first column is of names, the others of numbers."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = []
    for row in cells:
        first, *others = row
        shown = [first.ljust(widths[0])]
        shown += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append(f"| {' | '.join(shown)} |" if markdown else "  ".join(shown))
    if markdown:
        rule = [f"{'-' * (widths[0])}", *(f"{'-' * (width - 1)}:" for width in widths[1:])]
        lines.insert(1, f"| {' | '.join(rule)} |")
    return "\n".join(lines)
