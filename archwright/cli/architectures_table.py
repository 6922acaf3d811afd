"""The table of architectures as text, CSV, Markdown or JSON."""

import csv
import io
import json

from archwright.cli.parser import print_table
from archwright.reporting.architectures import table
from archwright.spec.table import COLUMNS, Row, rows, short

FORMATS = ("text", "csv", "markdown", "json")

UNKNOWN = "?"
"""Stands for what is not published."""


def print_architectures(format: str, *, wide: bool = False) -> None:
    """Print a row for each model that comes with the package."""
    found = rows()
    if format == "text":
        _print_text(found, wide)
    elif format == "csv":
        print(_csv(found), end="")
    elif format == "markdown":
        print(table(found), end="")
    else:
        print(json.dumps([_numbers(_record(row)) for row in found], indent=2, ensure_ascii=False))


def _print_text(found: list[Row], wide: bool) -> None:
    columns = [name for name, column in COLUMNS.items() if wide or column.brief]
    lines = [["model", *(name.replace("_", " ") for name in columns)]]
    for row in found:
        empty = UNKNOWN if row.unpublished else ""
        cells = short(row.cells)
        lines.append([row.name, *(cells[name] or empty for name in columns)])
    print_table(lines)
    for row in found:
        if row.unpublished:
            print(f"{row.name}: unpublished: {row.unpublished}.")
    print()


def _csv(found: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["model", *COLUMNS, "unpublished"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(_record(row) for row in found)
    return text.getvalue()


def _record(row: Row) -> dict[str, str]:
    return {"model": row.name, **row.cells, "unpublished": row.unpublished}


def _numbers(record: dict[str, str]) -> dict[str, str | int]:
    return {key: int(cell) if cell.isdigit() else cell for key, cell in record.items()}
