"""The table of architectures as text, CSV, Markdown or JSON."""

import csv
import io
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from archwright.cli.parser import print_table
from archwright.format import flops, parameters, size

Record = dict[str, str]
"""Cells of a model by column; `unpublished` lists its missing facts."""

IN_DIGITS = {
    "parameters": parameters,
    "cache_per_token": size,
    "state_per_sequence": size,
    "flops_per_token": flops,
    "training_memory": size,
}
"""Formatters of large numbers by column."""

FORMATS = ("text", "csv", "markdown", "json")

DECIMAL = re.compile(r"\d+\.\d+")

UNKNOWN = "?"
"""Cell of an unpublished value."""
LEAST_WIDTH = 60
"""Minimum width of a table, in characters, even in a narrower terminal."""
ENDLESS = 10**6


def print_architectures(
    models: dict[str, Any], format: str, *, names: Sequence[str], all_columns: bool = False
) -> None:
    """Print a listing of models as a table with the columns `names`."""
    records: list[Record] = models["rows"]
    if format == "text":
        columns = names[1:-1] if all_columns else models["brief"]
        rows = [["model", *(name.replace("_", " ") for name in columns)]]
        for record in records:
            empty = UNKNOWN if record["unpublished"] else ""
            cells = _short(record)
            rows.append([record["model"], *(cells[name] or empty for name in columns)])
        if all_columns:
            print_table(rows)
        else:
            print_fitting(rows, "; --wide shows all\n")
        for record in records:
            if record["unpublished"]:
                print(f"{record['model']}: unpublished: {record['unpublished']}.")
        if any(record["unpublished"] for record in records):
            print()
    elif format == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        print(text.getvalue(), end="")
    elif format == "markdown":
        print(table(records, names), end="")
    else:
        print(json.dumps([*map(_numbers, records)], indent=2, ensure_ascii=False))


def table(records: Sequence[Record], names: Sequence[str]) -> str:
    """Return a Markdown table; the last column, "unpublished", becomes a mark."""
    names = names[:-1]
    lines = [[*(name.replace("_", " ") for name in names)], ["---"] * len(names)]
    for record in records:
        name = f"{record['model']} (unpublished)" if record["unpublished"] else record["model"]
        lines.append([name, *(_short(record)[column] for column in names[1:])])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _short(record: Record) -> Record:
    """Return a record with large numbers abbreviated to three digits."""
    numbers = {name: record.get(name, "") for name in IN_DIGITS}
    return record | {
        name: IN_DIGITS[name](int(text)) for name, text in numbers.items() if text.isdigit()
    }


def print_fitting(rows: list[list[str]], hint: str = "") -> None:
    """Print the columns that fit into the terminal's width, then the names of the other columns.

    The width is unlimited without a terminal or COLUMNS."""
    width = max(LEAST_WIDTH, shutil.get_terminal_size((ENDLESS, 24)).columns)
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    number = len(widths)
    while number > 1 and sum(widths[:number]) + 2 * (number - 1) > width:
        number -= 1
    print_table([row[:number] for row in rows])
    if left_out := rows[0][number:]:
        print(f"left out, as the terminal is narrow: {', '.join(left_out)}{hint}")


def with_costs(
    models: dict[str, Any], costs: Mapping[str, Mapping[str, int | None]]
) -> dict[str, Any]:
    """Insert columns of costs before the last column, "unpublished"."""
    names, rows = [*next(iter(costs.values()))], []
    for record in models["rows"]:
        model_costs = costs.get(record["model"], {})
        *cells, unpublished = record.items()
        # None prints as "none" (no such cost), an unknown cost as an empty cell.
        numbers = ((name, model_costs.get(name, "")) for name in names)
        cells += [(name, "none" if n is None else str(n)) for name, n in numbers]
        rows.append(dict([*cells, unpublished]))
    return {**models, "rows": rows}


def _numbers(record: Record) -> dict[str, str | int | float]:
    return {key: _number(cell) for key, cell in record.items()}


def _number(cell: str) -> str | int | float:
    if cell.isdigit():
        return int(cell)
    return float(cell) if DECIMAL.fullmatch(cell) else cell
