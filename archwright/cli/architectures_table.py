"""The table of architectures as text, CSV, Markdown or JSON."""

import csv
import io
import json
from collections.abc import Mapping
from typing import Any

from archwright.catalogue.architectures import Record, short, table
from archwright.cli.parser import print_table

FORMATS = ("text", "csv", "markdown", "json")

UNKNOWN = "?"
"""Stands for what is not published."""


def print_architectures(models: dict[str, Any], format: str, *, all_columns: bool = False) -> None:
    """Print a row for each model that comes with the package, given the listing of them."""
    records: list[Record] = models["rows"]
    if format == "text":
        columns = [*records[0]][1:-1] if all_columns else models["brief"]
        lines = [["model", *(name.replace("_", " ") for name in columns)]]
        for record in records:
            empty = UNKNOWN if record["unpublished"] else ""
            cells = short(record)
            lines.append([record["model"], *(cells[name] or empty for name in columns)])
        print_table(lines)
        for record in records:
            if record["unpublished"]:
                print(f"{record['model']}: unpublished: {record['unpublished']}.")
        print()
    elif format == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, [*records[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        print(text.getvalue(), end="")
    elif format == "markdown":
        print(table(records), end="")
    else:
        print(json.dumps([*map(_numbers, records)], indent=2, ensure_ascii=False))


def with_costs(models: dict[str, Any], costs: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """Return a listing of models with columns of their costs, before the one that says what is unpublished."""
    names, rows = [*next(iter(costs.values()))], []
    for record in models["rows"]:
        own = costs.get(record["model"], {})
        *cells, unpublished = record.items()
        cells += [(name, str(own.get(name, ""))) for name in names]
        rows.append(dict([*cells, unpublished]))
    return {**models, "rows": rows}


def _numbers(record: Record) -> dict[str, str | int]:
    return {key: int(cell) if cell.isdigit() else cell for key, cell in record.items()}
