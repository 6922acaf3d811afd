"""`python -m tests.house [TEXT ...]`: print the table, or the places that rows with one of these texts count."""

import sys
from pathlib import Path

from tests.house import choices, comments, imports, llama, prose, sizes, suite
from tests.house.source import Count, read

ROOT = Path(__file__).parents[2]


def table(root: Path) -> list[Count]:
    """Return all rows."""
    package, tests = read(root), read(root, "tests")
    aspects = (sizes, prose, comments, choices, imports)
    rows = [row for aspect in aspects for row in aspect.counts(package)]
    return [*rows, *llama.counts(), *suite.counts(tests, package)]


def main(texts: list[str]) -> None:
    """Print rows, with all places where some are asked for."""
    rows = table(ROOT)
    if texts:
        for row in rows:
            if any(text.lower() in row.what.lower() for text in texts):
                print(f"{row.what}: {row.number}", *row.places, sep="\n  ")
        return
    width = max(len(row.what) for row in rows)
    print(f"{'what':{width}}  {'count':>7}  aim")
    for row in rows:
        print(f"{row.what:{width}}  {row.number!s:>7}  {row.aim}".rstrip())


if __name__ == "__main__":
    main(sys.argv[1:])
